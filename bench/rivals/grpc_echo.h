// SPDX-License-Identifier: Apache-2.0
//
// What the echoes over gRPC C++ have in common: the service, the server's settings and its end.
//
// Each has the method as protoc's plug-in would generate it, with raw messages: a ByteBuffer is a list of references to
// what gRPC received, so nothing is parsed, nor copied unless --one_piece asks for it.

#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/service_type.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "rivals/echo.h"

namespace echo {

// Thread safety: answer() from any thread.
class Service : public grpc::Service {
 public:
  // `handler` is the way the method is called; null: asynchronously.
  Service(const Options& options, grpc::internal::MethodHandler* handler) : one_piece_(options.one_piece) {
    AddMethod(new grpc::internal::RpcServiceMethod(kPath, grpc::internal::RpcMethod::NORMAL_RPC, handler));
    if (!options.reply_bytes) return;
    const grpc::Slice zeros(std::string(*options.reply_bytes, '\0'));
    fixed_reply_.emplace(&zeros, 1);
  }

  void answer(const grpc::ByteBuffer& request, grpc::ByteBuffer* reply) {
    grpc::Slice piece;
    if (one_piece_) request.DumpToSingleSlice(&piece);
    if (fixed_reply_)
      *reply = *fixed_reply_;
    else
      *reply = one_piece_ ? grpc::ByteBuffer(&piece, 1) : request;
    served_.fetch_add(1, std::memory_order_relaxed);  // read once all threads have been joined
  }

  std::uint64_t served() const { return served_.load(std::memory_order_relaxed); }

 private:
  const bool one_piece_;
  std::optional<grpc::ByteBuffer> fixed_reply_;
  std::atomic<std::uint64_t> served_{0};
};

// Listens on a free port of 127.0.0.1; ends the process where it cannot.
inline std::unique_ptr<grpc::Server> start(grpc::ServerBuilder* builder, Service* service) {
  int port = 0;
  builder->AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder->SetMaxReceiveMessageSize(-1);
  builder->RegisterService(service);
  std::unique_ptr<grpc::Server> server = builder->BuildAndStart();
  if (server == nullptr) {
    std::fprintf(stderr, "cannot listen\n");
    std::exit(1);
  }
  say_listening(port);
  return server;
}

inline void wait_for_stop(const sigset_t& signals) {
  int number = 0;
  sigwait(&signals, &number);
}

}  // namespace echo
