// SPDX-License-Identifier: Apache-2.0

#include "net/tls_context.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>

#include <algorithm>
#include <climits>
#include <iterator>
#include <utility>
#include <vector>

namespace headrace {
namespace {

struct Free {
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(X509* certificate) const { X509_free(certificate); }
};
template <typename T>
using Owned = std::unique_ptr<T, Free>;
using Certificates = std::vector<Owned<X509>>;

// Of TLS 1.2; RFC 9113 forbids the others.
constexpr const char* kCiphers = "ECDHE+AESGCM:ECDHE+CHACHA20";
constexpr unsigned char kSessionIdContext[] = "headrace";
constexpr unsigned char kH2[] = {2, 'h', '2'};

bool set_up_openssl() {
  static const bool done = OPENSSL_init_ssl(OPENSSL_INIT_NO_LOAD_CONFIG | OPENSSL_INIT_NO_ATEXIT |
                                                OPENSSL_INIT_LOAD_SSL_STRINGS | OPENSSL_INIT_LOAD_CRYPTO_STRINGS,
                                            nullptr) == 1;
  return done;
}

// OpenSSL's reason for what just failed, and nothing left of it.
std::string take_reason() {
  const char* reason = ERR_reason_error_string(ERR_peek_last_error());
  std::string text = reason == nullptr ? "no reason given" : reason;
  ERR_clear_error();
  return text;
}

Owned<BIO> reader_of(const std::string& text) {
  return Owned<BIO>(BIO_new_mem_buf(text.data(), static_cast<int>(std::min<std::size_t>(text.size(), INT_MAX))));
}

// Instead of asking for it on the terminal.
int note_passphrase_wanted(char*, int, int, void* wanted) {
  *static_cast<bool*>(wanted) = true;
  return -1;
}

Status read_key(const std::string& text, Owned<EVP_PKEY>* key) {
  bool passphrase_wanted = false;
  key->reset(PEM_read_bio_PrivateKey(reader_of(text).get(), nullptr, note_passphrase_wanted, &passphrase_wanted));
  if (*key != nullptr) return {};
  if (passphrase_wanted) {
    ERR_clear_error();
    return InvalidArgument(
        "private_key: it is encrypted with a passphrase; expected one without, as `openssl pkey` writes");
  }
  return InvalidArgument("private_key: no key can be read (" + take_reason() +
                         "); expected a PEM text with a \"-----BEGIN PRIVATE KEY-----\" block");
}

// Every certificate of a text, at least one.
Status read_certificates(const char* name, const std::string& text, Certificates* certificates) {
  const Owned<BIO> reader = reader_of(text);
  bool passphrase_wanted = false;
  for (;;) {
    Owned<X509> certificate(PEM_read_bio_X509(reader.get(), nullptr, note_passphrase_wanted, &passphrase_wanted));
    if (certificate == nullptr) break;
    certificates->push_back(std::move(certificate));
  }
  const unsigned long error = ERR_peek_last_error();
  const bool at_end = ERR_GET_LIB(error) == ERR_LIB_PEM && ERR_GET_REASON(error) == PEM_R_NO_START_LINE;
  if (at_end && !certificates->empty()) {
    ERR_clear_error();
    return {};
  }
  const std::string which =
      certificates->empty() ? "no certificate" : "no certificate " + std::to_string(certificates->size() + 1);
  return InvalidArgument(std::string(name) + ": " + which + " can be read (" + take_reason() +
                         "); expected a PEM text with \"-----BEGIN CERTIFICATE-----\" blocks");
}

Status use_identity(SSL_CTX* context, const TlsOptions& options) {
  Owned<EVP_PKEY> key;
  Certificates chain;
  if (Status status = read_key(options.private_key, &key); !status.ok()) return status;
  if (Status status = read_certificates("certificate", options.certificate, &chain); !status.ok()) return status;
  if (SSL_CTX_use_certificate(context, chain.front().get()) != 1)
    return InvalidArgument("certificate: " + take_reason() + "; expected one that TLS can use");
  for (auto link = std::next(chain.begin()); link != chain.end(); ++link)
    if (SSL_CTX_add1_chain_cert(context, link->get()) != 1)
      return InvalidArgument("certificate: certificate " + std::to_string(link - chain.begin() + 1) + ": " +
                             take_reason() + "; expected those that lead to a root");
  if (X509_check_private_key(chain.front().get(), key.get()) != 1)
    return InvalidArgument("private_key: " + take_reason() +
                           "; expected the key of the first certificate in the text of certificate");
  if (SSL_CTX_use_PrivateKey(context, key.get()) != 1)
    return InvalidArgument("private_key: " + take_reason() + "; expected one that TLS can use");
  return {};
}

Status trust_clients_of(SSL_CTX* context, const TlsOptions& options) {
  if (options.client_ca.empty()) {
    if (!options.verify_client) return {};
    return InvalidArgument(
        "client_ca: it is empty, and verify_client is set; expected the PEM certificates of those whose clients are "
        "let in");
  }
  Certificates trusted;
  if (Status status = read_certificates("client_ca", options.client_ca, &trusted); !status.ok()) return status;
  X509_STORE* const store = SSL_CTX_get_cert_store(context);
  for (const Owned<X509>& certificate : trusted)
    if (X509_STORE_add_cert(store, certificate.get()) != 1 || SSL_CTX_add_client_CA(context, certificate.get()) != 1)
      return InvalidArgument("client_ca: " + take_reason() + "; expected certificates that TLS can use");
  X509_STORE_set_flags(store, X509_V_FLAG_PARTIAL_CHAIN);  // what is named is trusted, a root or not
  return {};
}

int choose_protocol(SSL*, const unsigned char** chosen, unsigned char* chosen_size, const unsigned char* offered,
                    unsigned int offered_size, void*) {
  unsigned char* found = nullptr;
  if (SSL_select_next_proto(&found, chosen_size, kH2, sizeof kH2, offered, offered_size) != OPENSSL_NPN_NEGOTIATED)
    return SSL_TLSEXT_ERR_ALERT_FATAL;
  *chosen = found;
  return SSL_TLSEXT_ERR_OK;
}

}  // namespace

void TlsContext::Free::operator()(ssl_ctx_st* context) const { SSL_CTX_free(context); }

Status TlsContext::make(const TlsOptions& options, std::shared_ptr<const TlsContext>* context) {
  if (!set_up_openssl()) return Internal("OpenSSL does not start: " + take_reason());
  ERR_clear_error();
  Context made(SSL_CTX_new(TLS_server_method()));
  if (made == nullptr) return ResourceExhausted("no TLS context: " + take_reason());
  SSL_CTX* const ssl = made.get();
  SSL_CTX_set_options(ssl, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  if (SSL_CTX_set_min_proto_version(ssl, TLS1_2_VERSION) != 1 || SSL_CTX_set_cipher_list(ssl, kCiphers) != 1 ||
      SSL_CTX_set_session_id_context(ssl, kSessionIdContext, sizeof kSessionIdContext - 1) != 1)
    return Internal("OpenSSL lacks what HTTP/2 needs: " + take_reason());
  SSL_CTX_set_session_cache_mode(ssl, SSL_SESS_CACHE_OFF);  // tickets are with the clients
  SSL_CTX_set_mode(ssl, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_set_read_ahead(ssl, 1);
  SSL_CTX_set_alpn_select_cb(ssl, choose_protocol, nullptr);
  if (Status status = use_identity(ssl, options); !status.ok()) return status;
  if (Status status = trust_clients_of(ssl, options); !status.ok()) return status;
  SSL_CTX_set_verify(ssl, options.verify_client ? SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT : SSL_VERIFY_NONE,
                     nullptr);
  context->reset(new TlsContext(std::move(made)));
  return {};
}

ssl_st* TlsContext::new_session() const {
  SSL* const session = SSL_new(context_.get());
  if (session != nullptr) SSL_set_accept_state(session);
  return session;
}

}  // namespace headrace
