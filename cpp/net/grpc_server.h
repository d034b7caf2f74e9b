// SPDX-License-Identifier: Apache-2.0
//
// GrpcServer: gRPC over HTTP/2 on event-loop threads: stages 1, 2, 3 and 8 of a request's path, without Python.
//
// Thread safety: every function from any thread, start() and stop() one at a time.
// Ownership: keeps the router; the handler queue and the health table outlive it.
// Progress: loops never block but in their poll; a slow client holds up only itself.
// Invariant: every request that was handed to a lane is answered or cancelled before stop() returns.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/status.h"
#include "net/handler_queue.h"
#include "net/health_table.h"
#include "net/tls_context.h"
#include "router.h"

namespace headrace {

struct GrpcServerOptions {
  int loops = 1;
  std::size_t message_bytes_max = 0x7FFFFFFF;
  std::size_t header_bytes_max = 16 << 10;  // of one header block
  std::uint32_t streams_max = 1 << 10;      // calls at a time on one connection
  std::size_t connections_max = 1 << 14;
  std::size_t requests_max = 1 << 16;  // under way at a time, of all connections; health's do not count
  std::size_t buffered_bytes_max = std::size_t{1}
                                   << 30;  // of messages that are being received and sent, of all connections

  // 0: never.
  std::int64_t request_ns = 60'000'000'000;  // for a request to come in whole, and for a client to take any of a reply
  std::int64_t idle_ns = 0;                  // a connection without calls is closed after it
  std::int64_t age_ns = 0;        // a client is sent elsewhere when its connection is so old, give or take 10%
  std::int64_t age_grace_ns = 0;  // and then the connection is closed, whatever is under way on it
  std::int64_t ping_ns = 0;       // a client that was not heard of for so long is asked whether it is there
  std::int64_t ping_answer_ns = 20'000'000'000;  // for its answer
};

struct LoopGroup;
class ServerLoop;

class GrpcServer {
 public:
  // Methods that go to `handlers`; all other paths but Predict's and Health's are UNIMPLEMENTED.
  struct Method {
    std::string path;
    bool per_message = false;  // a stream of messages, one reply to each
  };

  GrpcServer(std::shared_ptr<const Router> router, std::vector<Method> methods, HandlerQueue& handlers,
             HealthTable& health, const GrpcServerOptions& options);
  ~GrpcServer();

  // Clients that connect from now on must talk TLS; INVALID_ARGUMENT changes nothing.  While it serves, this is how a
  // certificate is replaced: connections that are open go on.
  Status set_tls(const TlsOptions& options);
  // Listens and serves.  `host` is an address or a name, which may be several addresses; port 0 takes a free one, which
  // `port` then has.  With a `socket_path` it listens on a unix socket there as well.
  Status start(const std::string& host, int* port, const std::string& socket_path = "");

  // Answers UNAVAILABLE to every call that comes from now on; those that came before go on.
  void refuse();

  // GOAWAY; waits up to `drain_ns` for the calls under way, answers the rest with UNAVAILABLE, gives clients `send_ns`
  // to receive their answers, and closes everything.  False if something was not answered in time.
  bool stop(std::int64_t drain_ns, std::int64_t send_ns);

  // Those that are open now.
  std::size_t connections() const;
  // Of messages that are being received, answered and sent: what options.buffered_bytes_max limits.
  std::size_t buffered_bytes() const;

 private:
  std::unique_ptr<LoopGroup> group_;
  std::vector<std::unique_ptr<ServerLoop>> loops_;
};

}  // namespace headrace
