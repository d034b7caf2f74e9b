// SPDX-License-Identifier: Apache-2.0
//
// GrpcServerTest: a server on a free port of 127.0.0.1, a model of one lane over a FakeRunner, and its messages.
//
// Thread safety: the test's thread.

#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/clock.h"
#include "core/timer.h"
#include "fake_runner.h"
#include "http2_client.h"
#include "messages.h"
#include "model.h"
#include "net/grpc_server.h"

namespace headrace {

inline constexpr std::int64_t kSecondNs = 1'000'000'000;
inline const std::string kPredict = "/tensorflow.serving.PredictionService/Predict";
inline const std::string kHealthCheck = "/grpc.health.v1.Health/Check";
inline const std::string kHealthWatch = "/grpc.health.v1.Health/Watch";
inline const std::string kUnary = "/test.Service/Unary";
inline const std::string kPerMessage = "/test.Service/PerMessage";

class GrpcServerTest : public testing::Test {
 protected:
  GrpcServerTest() {
    timer_->start();
    router_->add("digits", model_);
    health_.set("", Serving::kServing);
  }
  ~GrpcServerTest() override {
    runner_->release();
    server_ = nullptr;
    EXPECT_TRUE(model_->close(60 * kSecondNs));
  }

  // Lanes hold up to `rows` rows; the model's one executor runs what there is.
  void start(const GrpcServerOptions& options = {}, std::int64_t max_batch_size = 64,
             const std::string& socket_path = "") {
    LaneOptions lane_options;
    lane_options.policy.max_batch_size = max_batch_size;
    lane_ = &model_->add_lane({.name = "serving_default",
                               .inputs = {{.name = "x", .dtype = DType::kFloat, .shape = {}, .tensor_name = ""}},
                               .outputs = {{.name = "x", .dtype = DType::kFloat, .shape = {}, .tensor_name = ""}}},
                              lane_options, runner_, nullptr);
    model_->start(1);
    server_ = std::make_unique<GrpcServer>(
        router_, std::vector<GrpcServer::Method>{{kUnary, false}, {kPerMessage, true}}, handlers_, health_, options);
    const Status status = server_->start("127.0.0.1", &port_, socket_path);
    ASSERT_TRUE(status.ok()) << status.message();
  }

  // A PredictRequest of one row of that many numbers, and the PredictResponse that FakeRunner makes of it.
  static std::string request(float first, std::int64_t numbers = 1) {
    return bytes_field(1, bytes_field(1, "digits")) + input("x", tensor(first, numbers));
  }
  static std::string response(float first, std::int64_t numbers = 1) {
    return bytes_field(1, bytes_field(1, "x") + bytes_field(2, tensor(first, numbers))) +
           bytes_field(
               2, bytes_field(1, "digits") + bytes_field(2, varint_field(1, 7)) + bytes_field(3, "serving_default"));
  }

  static void expect_ok(const Http2Client::Stream& stream, std::string_view message) {
    EXPECT_EQ(stream.header(":status"), "200");
    EXPECT_EQ(stream.header("content-type"), "application/grpc");
    EXPECT_EQ(stream.status(), "0") << stream.text();
    EXPECT_EQ(stream.header_blocks, 2);
    EXPECT_TRUE(stream.data == framed(message)) << stream.data.size() << " bytes, not " << message.size() + 5;
  }
  // Nothing but a header block.
  static void expect_error(const Http2Client::Stream& stream, Code code, std::string_view text) {
    EXPECT_EQ(stream.header(":status"), "200");
    EXPECT_EQ(stream.header("content-type"), "application/grpc");
    EXPECT_EQ(stream.status(), std::to_string(static_cast<int>(code)));
    EXPECT_NE(stream.text().find(text), std::string::npos) << stream.text();
    EXPECT_EQ(stream.header_blocks, 1);
    EXPECT_EQ(stream.data, "");
  }

  SystemClock clock_;
  std::shared_ptr<Timer> timer_ = std::make_shared<Timer>(clock_);
  std::shared_ptr<FakeRunner> runner_ = std::make_shared<FakeRunner>();
  std::shared_ptr<Model> model_ = std::make_shared<Model>("digits", 7, timer_, clock_);
  std::shared_ptr<Router> router_ = std::make_shared<Router>();
  HandlerQueue handlers_{16};
  HealthTable health_;
  Lane* lane_ = nullptr;
  int port_ = 0;
  std::unique_ptr<GrpcServer> server_;

 private:
  static std::string tensor(float first, std::int64_t numbers) {
    std::string run;
    for (std::int64_t i = 0; i < numbers; ++i, ++first) run.append(reinterpret_cast<const char*>(&first), sizeof first);
    return tensor_proto(DType::kFloat, {1, numbers}, bytes_field(5, run));
  }
};

}  // namespace headrace
