// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "net/request_head.h"

namespace headrace {
namespace {

using Headers = std::vector<std::pair<std::string, std::string>>;

RequestHead head_of(const Headers& more, std::string path = "/tensorflow.serving.PredictionService/Predict") {
  static const MethodTable methods = [] {  // heads point into it
    MethodTable table;
    table.add("/a.B/Stream", Method::Kind::kHandlerStream);
    return table;
  }();
  RequestHead head;
  head.add(":method", "POST", methods);
  head.add(":path", path, methods);
  head.add("content-type", "application/grpc", methods);
  for (const auto& [name, value] : more) head.add(name, value, methods);
  return head;
}

TEST(RequestHead, FindsTheMethod) {
  EXPECT_EQ(head_of({}).method().kind, Method::Kind::kPredict);
  EXPECT_EQ(head_of({}, "/grpc.health.v1.Health/Check").method().kind, Method::Kind::kHealthCheck);
  EXPECT_EQ(head_of({}, "/grpc.health.v1.Health/Watch").method().kind, Method::Kind::kHealthWatch);
  EXPECT_EQ(head_of({}, "/a.B/Stream").method().kind, Method::Kind::kHandlerStream);
  EXPECT_EQ(head_of({}, "/a.B/C").check(1000).code(), Code::kUnimplemented);
}

TEST(RequestHead, ReadsTheTimeout) {
  EXPECT_EQ(head_of({}).timeout_ns(), std::nullopt);
  EXPECT_EQ(head_of({{"grpc-timeout", "20m"}}).timeout_ns(), 20'000'000);
  EXPECT_TRUE(head_of({{"grpc-timeout", "20m"}}).check(1000).ok());
  EXPECT_EQ(head_of({{"grpc-timeout", "20"}}).check(1000).code(), Code::kInternal);
}

TEST(RequestHead, EncodesTheReplyAsTheRequestIsIfTheClientTakesThat) {
  const std::pair<std::string, std::string> gzip = {"grpc-encoding", "gzip"}, takes = {"grpc-accept-encoding", "gzip"};
  EXPECT_EQ(head_of({takes}).reply_encoding(), Encoding::kIdentity);
  EXPECT_EQ(head_of({gzip}).reply_encoding(), Encoding::kIdentity);
  EXPECT_EQ(head_of({gzip, takes}).reply_encoding(), Encoding::kGzip);
  EXPECT_EQ(head_of({takes, gzip}).encoding(), Encoding::kGzip);
  EXPECT_EQ(head_of({gzip, {"grpc-accept-encoding", "identity, deflate, gzip"}}).reply_encoding(), Encoding::kGzip);
  EXPECT_EQ(head_of({gzip, {"grpc-accept-encoding", "identity, deflate"}}).reply_encoding(), Encoding::kIdentity);
  const RequestHead unknown = head_of({{"grpc-encoding", "snappy"}, takes});
  EXPECT_EQ(unknown.check(1000).code(), Code::kUnimplemented);
  EXPECT_TRUE(unknown.has_unknown_encoding());
}

TEST(RequestHead, CountsBytesAsHttp2Does) {
  const std::size_t bytes = head_of({}).bytes();
  EXPECT_EQ(head_of({{"ab", "cde"}}).bytes(), bytes + 37);
  EXPECT_TRUE(head_of({}).check(bytes).ok());
  EXPECT_EQ(head_of({}).check(bytes - 1).code(), Code::kResourceExhausted);
}

TEST(RequestHead, TellsWhatIsNotGrpc) {
  EXPECT_EQ(head_of({}).http_error(), 0);
  EXPECT_EQ(head_of({{"content-type", "text/html"}}).http_error(), 415);
  EXPECT_EQ(head_of({{":method", "GET"}}).http_error(), 405);
  EXPECT_EQ(RequestHead().http_error(), 405);
}

}  // namespace
}  // namespace headrace
