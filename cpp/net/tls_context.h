// SPDX-License-Identifier: Apache-2.0
//
// TlsContext: what a server shows to its clients and wants of them before they may talk: its certificate, the protocol
// versions, HTTP/2, and if so configured a certificate of theirs.
//
// TLS 1.2 and 1.3, with the ciphers that HTTP/2 allows; a client that names protocols (ALPN) must name h2.  Sessions
// are resumed by tickets, which only the context that gave them takes: a client that another context let in is asked
// again.
//
// OpenSSL is linked statically.  It reads no openssl.cnf and no OPENSSL_CONF, which belong to the machine's own OpenSSL
// of another build and may load modules for that; and it leaves nothing to be done at exit, where loops may still run.
//
// Thread safety: make() any thread; a context is immutable.
// Ownership: streams keep what they need of it.

#pragma once

#include <memory>
#include <string>

#include "core/status.h"

struct ssl_ctx_st;
struct ssl_st;

namespace headrace {

// Texts in PEM.
struct TlsOptions {
  std::string private_key{};   // without a passphrase
  std::string certificate{};   // the server's own first, then what leads to a root
  std::string client_ca{};     // whose certificates clients may have; "": nobody's
  bool verify_client = false;  // a client without such a certificate is refused
};

class TlsContext {
 public:
  // INVALID_ARGUMENT, which says which text is wrong.
  static Status make(const TlsOptions& options, std::shared_ptr<const TlsContext>* context);

  // A session of a server, which whoever asks frees; null where memory is short.
  ssl_st* new_session() const;

 private:
  struct Free {
    void operator()(ssl_ctx_st* context) const;
  };
  using Context = std::unique_ptr<ssl_ctx_st, Free>;

  explicit TlsContext(Context context) : context_(std::move(context)) {}

  const Context context_;
};

}  // namespace headrace
