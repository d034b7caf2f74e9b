// SPDX-License-Identifier: Apache-2.0
//
// TlsClient: a RawClient whose bytes go through TLS.
//
// Thread safety: one thread at a time.

#pragma once

#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "certificates.h"
#include "fake_request.h"
#include "http2_client.h"

namespace headrace {

struct TlsClientOptions {
  int version = 0;            // the only one; 0: any
  std::string server_ca{};    // "": the server's certificate is not looked at
  Identity identity{};        // what it shows if it is asked
  std::string alpn = "\2h2";  // as on the wire; "": no protocols are named
  bool byte_by_byte = false;  // each byte it sends is a segment
  SSL_SESSION* resume = nullptr;
};

// The client's end, before it has said anything; nothing of a socket yet.
class TlsSession {
 public:
  explicit TlsSession(const TlsClientOptions& options) : context_(SSL_CTX_new(TLS_client_method())) {
    SSL_CTX_set_security_level(context_, 0);  // old versions are the server's to refuse
    SSL_CTX_set_min_proto_version(context_, options.version);
    SSL_CTX_set_max_proto_version(context_, options.version);
    SSL_CTX_set_mode(context_, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_max_cert_list(context_, 16 << 20);
    if (!options.server_ca.empty()) {
      const BioPtr text(BIO_new_mem_buf(options.server_ca.data(), static_cast<int>(options.server_ca.size())));
      const CertificatePtr ca(PEM_read_bio_X509(text.get(), nullptr, nullptr, nullptr));
      EXPECT_EQ(X509_STORE_add_cert(SSL_CTX_get_cert_store(context_), ca.get()), 1);
      SSL_CTX_set_verify(context_, SSL_VERIFY_PEER, nullptr);
    }
    if (!options.identity.certificate.empty()) {
      const std::string& certificate_text = options.identity.certificate;
      const std::string& key_text = options.identity.private_key;
      const BioPtr certificate_reader(
          BIO_new_mem_buf(certificate_text.data(), static_cast<int>(certificate_text.size())));
      const BioPtr key_reader(BIO_new_mem_buf(key_text.data(), static_cast<int>(key_text.size())));
      const CertificatePtr certificate(PEM_read_bio_X509(certificate_reader.get(), nullptr, nullptr, nullptr));
      const KeyPtr key(PEM_read_bio_PrivateKey(key_reader.get(), nullptr, nullptr, nullptr));
      EXPECT_EQ(SSL_CTX_use_certificate(context_, certificate.get()), 1);
      EXPECT_EQ(SSL_CTX_use_PrivateKey(context_, key.get()), 1);
    }
    ssl_ = SSL_new(context_);
    if (!options.alpn.empty())
      SSL_set_alpn_protos(ssl_, reinterpret_cast<const unsigned char*>(options.alpn.data()),
                          static_cast<unsigned>(options.alpn.size()));
    if (options.resume != nullptr) SSL_set_session(ssl_, options.resume);
    SSL_set_connect_state(ssl_);
  }
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;
  ~TlsSession() {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
  }

  SSL* ssl() const { return ssl_; }

 private:
  SSL_CTX* context_;
  SSL* ssl_;
};

// The first bytes of a client.
inline std::string client_hello(const TlsClientOptions& options = {}) {
  const TlsSession session(options);
  SSL_set_bio(session.ssl(), BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
  SSL_connect(session.ssl());
  ERR_clear_error();
  return text_of(SSL_get_wbio(session.ssl()));
}

class TlsClient final : public RawClient {
 public:
  explicit TlsClient(int port, const TlsClientOptions& options = {})
      : RawClient(port), session_(options), byte_by_byte_(options.byte_by_byte) {
    ::fcntl(fd(), F_SETFL, O_NONBLOCK);
    ::signal(SIGPIPE, SIG_IGN);  // OpenSSL writes to sockets without a thought of it
    if (!byte_by_byte_) {
      SSL_set_fd(ssl(), fd());
      return;
    }
    SSL_set_bio(ssl(), BIO_new_socket(fd(), BIO_NOCLOSE), BIO_new(BIO_s_mem()));
  }

  SSL* ssl() const { return session_.ssl(); }

  // Begins to shake hands, and reads nothing yet.
  void say_hello() { EXPECT_EQ(SSL_get_error(ssl(), SSL_connect(ssl())), SSL_ERROR_WANT_READ); }

  // Whether the server let it in; as for TLS 1.3, it may still be refused with the first read.
  bool shake_hands() {
    for (;;) {
      ERR_clear_error();
      const int result = SSL_connect(ssl());
      const int wanted = SSL_get_error(ssl(), result);
      if (result == 1 || wanted == SSL_ERROR_WANT_READ) flush();
      if (result == 1) return true;
      if (wanted != SSL_ERROR_WANT_READ && wanted != SSL_ERROR_WANT_WRITE) {
        note_error();
        return false;
      }
      pollfd ready{fd(), static_cast<short>(wanted == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT), 0};
      const auto limit = std::chrono::milliseconds(kEventLimit).count();
      if (::poll(&ready, 1, static_cast<int>(limit)) <= 0) {
        ADD_FAILURE() << "the server does not shake hands";
        return false;
      }
    }
  }

  // Why it was not let in, in OpenSSL's words: shakes hands and reads until the server closes.
  std::string refusal() {
    if (shake_hands()) {
      char byte;
      pollfd readable{fd(), POLLIN, 0};
      const auto limit = std::chrono::milliseconds(kEventLimit).count();
      while (::poll(&readable, 1, static_cast<int>(limit)) > 0 && (read_some(&byte, 1) > 0 || errno == EAGAIN) &&
             error_.empty() && !ended_)
        continue;
    }
    return error_;
  }

  ssize_t write_some(std::string_view bytes) override {
    std::size_t size = 0;
    ERR_clear_error();
    const int result = SSL_write_ex(ssl(), bytes.data(), bytes.size(), &size);
    flush();
    return result == 1 ? static_cast<ssize_t>(size) : failed(result);
  }

  ssize_t read_some(void* buffer, std::size_t size) override {
    ERR_clear_error();
    const int result = SSL_read_ex(ssl(), buffer, size, &size);
    return result == 1 ? static_cast<ssize_t>(size) : failed(result);
  }

  std::string version() const { return SSL_get_version(ssl()); }
  std::string alpn() const {
    const unsigned char* name = nullptr;
    unsigned size = 0;
    SSL_get0_alpn_selected(ssl(), &name, &size);
    return {reinterpret_cast<const char*>(name), size};
  }
  std::string server_name() const {
    char name[100] = "";
    X509_NAME_get_text_by_NID(X509_get_subject_name(SSL_get0_peer_certificate(ssl())), NID_commonName, name,
                              sizeof name);
    return name;
  }
  bool was_told_the_end() const { return ended_; }
  const std::string& error() const { return error_; }

 private:
  ssize_t failed(int result) {
    switch (SSL_get_error(ssl(), result)) {
      case SSL_ERROR_WANT_READ:
      case SSL_ERROR_WANT_WRITE:
        errno = EAGAIN;
        return -1;
      case SSL_ERROR_ZERO_RETURN:
        ended_ = true;
        return 0;
      default:
        note_error();
        errno = ECONNRESET;
        return -1;
    }
  }

  void note_error() {
    const char* reason = ERR_reason_error_string(ERR_peek_last_error());
    if (error_.empty()) error_ = reason == nullptr ? "closed" : reason;
    ERR_clear_error();
  }

  void flush() {
    if (!byte_by_byte_) return;
    char byte;
    while (BIO_read(SSL_get_wbio(ssl()), &byte, 1) == 1) send({&byte, 1});
  }

  TlsSession session_;
  const bool byte_by_byte_;
  bool ended_ = false;
  std::string error_;
};

}  // namespace headrace
