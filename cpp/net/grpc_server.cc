// SPDX-License-Identifier: Apache-2.0

#include "net/grpc_server.h"

#include <algorithm>
#include <chrono>
#include <mutex>
#include <utility>

#include "net/listener.h"
#include "net/loop_group.h"
#include "net/method_table.h"
#include "net/server_loop.h"

namespace headrace {
namespace {

using Phase = LoopGroup::Phase;

// A year: the end of longer waits could not be told as a time.
constexpr std::int64_t kDrainNsMax = std::int64_t{365} * 24 * 3600 * 1'000'000'000;

MethodTable table_of(std::vector<GrpcServer::Method> methods) {
  using Kind = headrace::Method::Kind;
  MethodTable table;
  for (GrpcServer::Method& method : methods)
    table.add(std::move(method.path), method.per_message ? Kind::kHandlerStream : Kind::kHandler);
  return table;
}

// Phases are only ever left for later ones.
void move_to(LoopGroup& group, const std::vector<std::unique_ptr<ServerLoop>>& loops, Phase phase) {
  Phase was = group.phase.load();
  while (was < phase && !group.phase.compare_exchange_weak(was, phase)) continue;
  for (const auto& loop : loops) loop->wake();
}

}  // namespace

GrpcServer::GrpcServer(std::shared_ptr<const Router> router, std::vector<Method> methods, HandlerQueue& handlers,
                       HealthTable& health, const GrpcServerOptions& options)
    : group_(std::make_unique<LoopGroup>(std::move(router), table_of(std::move(methods)), handlers, health, options)) {}

GrpcServer::~GrpcServer() { stop(0, 0); }

Status GrpcServer::set_tls(const TlsOptions& options) {
  std::shared_ptr<const TlsContext> context;
  if (Status status = TlsContext::make(options, &context); !status.ok()) return status;
  group_->set_tls(std::move(context));
  return {};
}
Status GrpcServer::start(const std::string& host, int* port, const std::string& socket_path) {
  if (!loops_.empty() || group_->phase.load() != Phase::kServing)
    return FailedPrecondition("the server was started or stopped before");
  std::vector<Listener> listeners;
  if (Status status = listen_on(host, port, &listeners); !status.ok()) return status;
  if (!socket_path.empty())
    if (Status status = listen_on_path(socket_path, &listeners); !status.ok()) return status;
  std::vector<std::unique_ptr<ServerLoop>> loops;
  std::vector<ServerLoop*> peers;
  for (int i = 0; i < std::max(1, group_->options.loops); ++i) {
    peers.push_back(loops.emplace_back(std::make_unique<ServerLoop>(*group_)).get());
    if (Status status = peers.back()->open(); !status.ok()) return status;
  }
  loops_ = std::move(loops);
  for (const auto& loop : loops_) loop->start(std::exchange(listeners, {}), peers);
  return {};
}

void GrpcServer::refuse() { move_to(*group_, loops_, Phase::kRefusing); }

bool GrpcServer::stop(std::int64_t drain_ns, std::int64_t send_ns) {
  move_to(*group_, loops_, Phase::kDraining);
  {
    std::unique_lock lock(group_->mutex);
    group_->changed.wait_for(lock, std::chrono::nanoseconds(std::min(drain_ns, kDrainNsMax)),
                             [this] { return group_->loops_drained >= static_cast<int>(loops_.size()); });
  }
  group_->close_at_ns = after_ns(group_->clock.now_ns(), send_ns);
  move_to(*group_, loops_, Phase::kEnding);
  for (const auto& loop : loops_) loop->join();
  loops_.clear();
  group_->codecs.close();
  return !group_->was_late;
}

std::size_t GrpcServer::connections() const { return group_->connections.load(); }

std::size_t GrpcServer::buffered_bytes() const { return group_->budget->was_taken(); }

}  // namespace headrace
