// SPDX-License-Identifier: Apache-2.0
//
// gRPC C++ by its callback API: requests are answered on gRPC's own threads.

#include <grpcpp/impl/codegen/server_callback_handlers.h>
#include <grpcpp/support/server_callback.h>

#include "rivals/grpc_echo.h"

namespace {

class CallbackService : public echo::Service {
 public:
  explicit CallbackService(const echo::Options& options) : Service(options, nullptr) {
    MarkMethodRawCallback(0, new CallbackHandler([this](grpc::CallbackServerContext* context,
                                                        const grpc::ByteBuffer* request, grpc::ByteBuffer* reply) {
                            answer(*request, reply);
                            grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
                            reactor->Finish(grpc::Status::OK);
                            return reactor;
                          }));
  }

 private:
  using CallbackHandler = grpc::internal::CallbackUnaryHandler<grpc::ByteBuffer, grpc::ByteBuffer>;
};

}  // namespace

int main(int argc, char** argv) {
  const sigset_t signals = echo::block_stop_signals();
  CallbackService service(echo::parse(argc, argv));
  grpc::ServerBuilder builder;
  const std::unique_ptr<grpc::Server> server = echo::start(&builder, &service);
  echo::wait_for_stop(signals);
  server->Shutdown();
  server->Wait();
  echo::say_served(service.served());
  return 0;
}
