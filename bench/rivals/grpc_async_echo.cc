// SPDX-License-Identifier: Apache-2.0
//
// gRPC C++ by its completion queues, the fastest of its APIs: one queue and one thread for each core.

#include <grpcpp/support/async_unary_call.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "rivals/grpc_echo.h"

namespace {

// Calls that wait for a request, for each queue.
constexpr int kCallsReady = 256;

class AsyncService : public echo::Service {
 public:
  explicit AsyncService(const echo::Options& options) : Service(options, nullptr) { MarkMethodRaw(0); }

  void request(grpc::ServerContext* context, grpc::ByteBuffer* message,
               grpc::ServerAsyncResponseWriter<grpc::ByteBuffer>* responder, grpc::ServerCompletionQueue* queue,
               void* tag) {
    RequestAsyncUnary(0, context, message, responder, queue, queue, tag);
  }
};

// One request from its coming to its end; the next is waited for by a new one.
class Call {
 public:
  Call(AsyncService& service, grpc::ServerCompletionQueue* queue) : service_(service), queue_(queue) {
    service_.request(&context_, &message_, &responder_, queue_, this);
  }

  // The queue has it: with a request, or with the end of its answer.
  void go_on(bool ok) {
    if (!ok || answered_) {
      delete this;
      return;
    }
    new Call(service_, queue_);
    answered_ = true;
    grpc::ByteBuffer reply;
    service_.answer(message_, &reply);
    responder_.Finish(reply, grpc::Status::OK, this);
  }

 private:
  AsyncService& service_;
  grpc::ServerCompletionQueue* const queue_;
  grpc::ServerContext context_;
  grpc::ByteBuffer message_;
  grpc::ServerAsyncResponseWriter<grpc::ByteBuffer> responder_{&context_};
  bool answered_ = false;
};

void serve(grpc::ServerCompletionQueue* queue) {
  void* tag = nullptr;
  bool ok = false;
  while (queue->Next(&tag, &ok)) static_cast<Call*>(tag)->go_on(ok);
}

}  // namespace

int main(int argc, char** argv) {
  const sigset_t signals = echo::block_stop_signals();
  AsyncService service(echo::parse(argc, argv));
  grpc::ServerBuilder builder;
  std::vector<std::unique_ptr<grpc::ServerCompletionQueue>> queues(std::max(1u, std::thread::hardware_concurrency()));
  for (auto& queue : queues) queue = builder.AddCompletionQueue();
  const std::unique_ptr<grpc::Server> server = echo::start(&builder, &service);
  std::vector<std::thread> threads;
  for (const auto& queue : queues) {
    for (int i = 0; i < kCallsReady; ++i) new Call(service, queue.get());
    threads.emplace_back(serve, queue.get());
  }
  echo::wait_for_stop(signals);
  server->Shutdown();
  for (const auto& queue : queues) queue->Shutdown();
  for (std::thread& thread : threads) thread.join();
  echo::say_served(service.served());
  return 0;
}
