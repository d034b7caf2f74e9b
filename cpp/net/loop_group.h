// SPDX-License-Identifier: Apache-2.0
//
// LoopGroup: what the loops of one server share.
//
// Thread safety: every function from any thread; what is const is set before the loops start.
// Ownership: the handler queue and the health table outlive it.

#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "core/clock.h"
#include "net/byte_budget.h"
#include "net/byte_stream.h"
#include "net/codec_pool.h"
#include "net/descriptor.h"
#include "net/grpc_server.h"
#include "net/listener.h"
#include "net/method_table.h"
#include "net/tls_context.h"
#include "net/tls_stream.h"
#include "router.h"

namespace headrace {

struct LoopGroup {
  // In this order; each loop follows when it next looks, which wake() of its inbox makes soon.
  enum class Phase : std::uint8_t {
    kServing,
    kRefusing,  // new calls are answered with UNAVAILABLE
    kDraining,  // nobody new may connect, and clients are told to go elsewhere
    kEnding,    // what is not answered is answered with UNAVAILABLE; connections close once all is sent
  };

  static constexpr int kCodecThreads = 2;

  LoopGroup(std::shared_ptr<const Router> router, MethodTable methods, HandlerQueue& handlers, HealthTable& health,
            const GrpcServerOptions& options)
      : router(std::move(router)),
        methods(std::move(methods)),
        handlers(handlers),
        health(health),
        options(options),
        budget(std::make_shared<ByteBudget>(options.buffered_bytes_max)) {}

  // A loop has no call under way that was to be answered.
  void loop_drained() {
    std::lock_guard lock(mutex);
    ++loops_drained;
    changed.notify_all();
  }

  // For connections that come from now on.
  void set_tls(std::shared_ptr<const TlsContext> context) {
    std::lock_guard lock(mutex);
    tls.swap(context);
  }

  // What a client that has connected talks.  On a unix socket that is never TLS, as with TensorFlow Serving.
  std::unique_ptr<ByteStream> stream_on(Descriptor socket) {
    std::unique_lock lock(mutex);
    const std::shared_ptr<const TlsContext> context = tls;
    lock.unlock();
    if (context == nullptr || is_unix(socket)) return std::make_unique<PlainStream>(std::move(socket));
    return std::make_unique<TlsStream>(*context, std::move(socket));
  }

  const std::shared_ptr<const Router> router;
  const MethodTable methods;
  HandlerQueue& handlers;
  HealthTable& health;
  const GrpcServerOptions options;
  const SystemClock clock;
  const std::shared_ptr<ByteBudget> budget;  // kept by every message
  CodecPool codecs{kCodecThreads};
  std::atomic<std::size_t> connections{0};
  std::atomic<std::size_t> requests{0};  // that count
  std::atomic<Phase> phase{Phase::kServing};
  std::atomic<std::int64_t> close_at_ns{kNever};  // of kEnding: set before it
  std::atomic<bool> was_late{false};              // in kEnding there was a call without an answer

  std::mutex mutex;
  std::condition_variable changed;
  int loops_drained = 0;                  // guarded by mutex
  std::shared_ptr<const TlsContext> tls;  // guarded by mutex; null: none
};

}  // namespace headrace
