// SPDX-License-Identifier: Apache-2.0
//
// gRPC C++ as TensorFlow Serving uses it, without a model: a thread for each request that is being answered.

#include <grpcpp/support/method_handler.h>

#include "rivals/grpc_echo.h"

namespace {

class SyncService : public echo::Service {
 public:
  explicit SyncService(const echo::Options& options) : Service(options, new Handler(handle, this)) {}

 private:
  using Handler = grpc::internal::RpcMethodHandler<SyncService, grpc::ByteBuffer, grpc::ByteBuffer>;

  static grpc::Status handle(SyncService* self, grpc::ServerContext*, const grpc::ByteBuffer* request,
                             grpc::ByteBuffer* reply) {
    self->answer(*request, reply);
    return grpc::Status::OK;
  }
};

}  // namespace

int main(int argc, char** argv) {
  const sigset_t signals = echo::block_stop_signals();
  SyncService service(echo::parse(argc, argv));
  grpc::ServerBuilder builder;
  const std::unique_ptr<grpc::Server> server = echo::start(&builder, &service);
  echo::wait_for_stop(signals);
  server->Shutdown();
  server->Wait();
  echo::say_served(service.served());
  return 0;
}
