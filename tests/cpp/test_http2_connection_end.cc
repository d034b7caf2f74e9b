// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "grpc_server_fixture.h"

namespace headrace {
namespace {

using namespace std::string_literals;

// Short enough for a test, long enough that what is done in time is not late on a busy machine.
constexpr std::int64_t kShortNs = 500'000'000;

class Http2ConnectionEndTest : public GrpcServerTest {
 protected:
  std::int64_t now_ns() const { return clock_.now_ns(); }

  // Returns once a request that began now has been given up for not coming in.
  void wait_until_overdue() {
    Http2Client slow(port_);
    EXPECT_EQ(slow.wait(slow.begin(Http2Client::grpc_headers(kPredict), "\0"s, false)).status(), "4");
  }
};

// ---- Requests that do not come in -----------------------------------------------------------------------------------

TEST_F(Http2ConnectionEndTest, AnswersARequestThatDoesNotComeInWhole) {
  start({.buffered_bytes_max = 1 << 20, .request_ns = kShortNs});
  Http2Client client(port_);
  ASSERT_TRUE(client.flush());
  const std::int64_t began_ns = now_ns();
  const std::string part = "\0\0\x0c\0\0"s + std::string(700'000, 'x');
  const std::int32_t large = client.begin(Http2Client::grpc_headers(kPredict), part, false);
  const std::int32_t empty = client.begin(Http2Client::grpc_headers(kUnary), "", false);
  const std::int32_t stream = client.begin(Http2Client::grpc_headers(kPerMessage), "\0\0\0"s, false);
  const std::string text = "the request had not come in whole 0.5 s after it began (--grpc_request_seconds)";
  for (const std::int32_t each : {large, empty, stream}) {
    expect_error(client.wait(each), Code::kDeadlineExceeded, text);
    EXPECT_GE(now_ns() - began_ns, kShortNs);
  }
  expect_ok(client.call(kPredict, request(1, 100'000)), response(1, 100'000));  // for which there is room again
}

TEST_F(Http2ConnectionEndTest, LetsARequestThatCameInTakeItsTime) {
  start({.request_ns = kShortNs});
  runner_->hold();
  Http2Client client(port_);
  const std::int32_t call = client.begin(kPredict, request(1)), handled = client.begin(kUnary, "x");
  const std::int32_t watch = client.begin(kHealthWatch, "");
  ASSERT_TRUE(client.flush());
  wait_until_overdue();
  wait_until_overdue();
  runner_->release();
  expect_ok(client.wait(call), response(1));
  handlers_.next()->answer({}, "done");
  expect_ok(client.wait(handled), "done");
  EXPECT_FALSE(client.stream(watch).closed);
}

TEST_F(Http2ConnectionEndTest, LetsAStreamPauseBetweenItsMessages) {
  start({.request_ns = kShortNs});
  Http2Client client(port_);
  const std::int32_t id = client.begin(Http2Client::grpc_headers(kPerMessage), framed("a"), false);
  ASSERT_TRUE(client.flush());
  handlers_.next()->answer({}, "1");
  wait_until_overdue();
  wait_until_overdue();
  const std::int64_t began_ns = now_ns();
  client.continue_with(id, framed("b") + "\0\0"s, false);
  ASSERT_TRUE(client.flush());
  handlers_.next()->answer({}, "2");
  EXPECT_EQ(client.wait(id).status(), "4");
  EXPECT_GE(now_ns() - began_ns, kShortNs);
  EXPECT_EQ(client.stream(id).data, framed("1") + framed("2"));
}

TEST_F(Http2ConnectionEndTest, EndsAConnectionThatStopsInAHeaderBlock) {
  start({.request_ns = kShortNs});
  const std::int64_t began_ns = now_ns();
  RawClient client(port_);
  client.send(std::string(kPreface) + frame(NGHTTP2_SETTINGS, 0, 0, "") + frame(NGHTTP2_HEADERS, 0, 1, "\x82"));
  EXPECT_EQ(goaway_error(client.receive_all()), static_cast<std::uint32_t>(NGHTTP2_ENHANCE_YOUR_CALM));
  EXPECT_GE(now_ns() - began_ns, kShortNs);
}

TEST_F(Http2ConnectionEndTest, ClosesAConnectionThatDoesNotBegin) {
  start({.loops = 2, .request_ns = kShortNs});
  Http2Client quiet(port_);
  ASSERT_TRUE(quiet.flush());
  for (const std::string& said : {""s, std::string(kPreface.substr(0, 10)), std::string(kPreface)}) {
    const std::int64_t began_ns = now_ns();
    RawClient client(port_);
    client.send(said);
    client.receive_all();
    EXPECT_GE(now_ns() - began_ns, kShortNs);
  }
  expect_ok(quiet.call(kPredict, request(1)), response(1));
}

TEST_F(Http2ConnectionEndTest, WaitsForEverWhereItIsToldTo) {
  start({.request_ns = 0, .idle_ns = kShortNs});
  RawClient silent(port_);
  Http2Client client(port_), idle(port_);
  const std::int32_t slow = client.begin(Http2Client::grpc_headers(kPredict), framed(request(1)).substr(0, 9), false);
  ASSERT_TRUE(client.flush());
  EXPECT_TRUE(idle.wait_closed());
  client.continue_with(slow, framed(request(1)).substr(9), true);
  expect_ok(client.wait(slow), response(1));
}

// ---- Replies that are not taken -------------------------------------------------------------------------------------

TEST_F(Http2ConnectionEndTest, ResetsACallWhoseReplyNobodyTakes) {
  start({.buffered_bytes_max = 1 << 20, .request_ns = kShortNs});
  const std::string large = request(1, 100'000), reply = response(1, 100'000);
  const std::int64_t began_ns = now_ns();
  Http2Client client(port_, 0);
  const std::int32_t id = client.begin(kPredict, large);
  EXPECT_EQ(client.wait(id).error, static_cast<std::uint32_t>(NGHTTP2_CANCEL));
  EXPECT_GE(now_ns() - began_ns, kShortNs);
  for (int i = 0; i < 4; ++i) {  // each needs the room that the one before had
    Http2Client other(port_);
    expect_ok(other.call(kPredict, large), reply);
  }
  EXPECT_TRUE(client.flush());
}

TEST_F(Http2ConnectionEndTest, LetsAClientTakeAReplyInSmallParts) {
  start({.request_ns = kShortNs});
  Http2Client client(port_, 0);
  const std::int32_t id = client.begin(kPredict, request(1, 1000));
  ASSERT_TRUE(client.flush());
  const std::int64_t began_ns = now_ns();
  std::int64_t last_ns = began_ns;
  while (now_ns() - began_ns < 3 * kShortNs && !client.stream(id).closed) {
    if (now_ns() - std::exchange(last_ns, now_ns()) > kShortNs / 2) GTEST_SKIP() << "too busy a machine to tell";
    nghttp2_submit_window_update(client.session(), NGHTTP2_FLAG_NONE, id, 1);
    const std::size_t had = client.stream(id).data.size();
    ASSERT_TRUE(client.pump([&] { return client.stream(id).data.size() > had || client.stream(id).closed; }));
  }
  nghttp2_submit_window_update(client.session(), NGHTTP2_FLAG_NONE, id, 1 << 20);
  expect_ok(client.wait(id), response(1, 1000));
}

TEST_F(Http2ConnectionEndTest, ClosesAConnectionWhoseSocketTakesNothing) {
  start({.connections_max = 1, .request_ns = kShortNs});
  Http2Client deaf(port_, 0x7FFFFFFF);  // takes everything, but does not read it off its socket
  deaf.begin(kUnary, "large");
  ASSERT_TRUE(deaf.flush());
  const std::int64_t began_ns = now_ns();
  handlers_.next()->answer({}, std::string(64 << 20, 'x'));
  for (;;) {  // until there is room for another connection
    Http2Client other(port_);
    if (!other.flush()) continue;
    EXPECT_GE(now_ns() - began_ns, kShortNs);
    return expect_ok(other.call(kPredict, request(1)), response(1));
  }
}

// ---- Connections without calls --------------------------------------------------------------------------------------

TEST_F(Http2ConnectionEndTest, EndsAnIdleConnectionAndNotBefore) {
  start({.loops = 2, .idle_ns = kShortNs});
  runner_->hold();
  Http2Client busy(port_);
  const std::int32_t call = busy.begin(kPredict, request(1));
  ASSERT_TRUE(busy.flush());
  for (int i = 0; i < 3; ++i) {
    const std::int64_t began_ns = now_ns();
    Http2Client idle(port_);
    EXPECT_TRUE(idle.wait_closed());
    EXPECT_GE(now_ns() - began_ns, kShortNs);
    EXPECT_EQ(idle.goaways(), 1);
    EXPECT_EQ(idle.goaway_error(), static_cast<std::uint32_t>(NGHTTP2_NO_ERROR));
  }
  ASSERT_TRUE(busy.flush());
  EXPECT_EQ(busy.goaways(), 0);
  const std::int64_t released_ns = now_ns();
  runner_->release();
  expect_ok(busy.wait(call), response(1));
  EXPECT_TRUE(busy.wait_closed());
  EXPECT_GE(now_ns() - released_ns, kShortNs);
  EXPECT_EQ(busy.goaways(), 1);
}

TEST_F(Http2ConnectionEndTest, KeepsAConnectionOnWhichThereIsACallNowAndThen) {
  start({.idle_ns = kShortNs});
  Http2Client client(port_), other(port_);
  const std::int64_t began_ns = now_ns();
  std::int64_t last_ns = began_ns;
  // Each call before the connection was idle for so long; the other one tells when that would have been.
  while (now_ns() - began_ns < 3 * kShortNs) {
    if (now_ns() - std::exchange(last_ns, now_ns()) > kShortNs / 2) GTEST_SKIP() << "too busy a machine to tell";
    expect_ok(client.call(kPredict, request(1)), response(1));
  }
  EXPECT_TRUE(other.wait_closed());
  EXPECT_EQ(client.goaways(), 0);
}

// ---- Old connections ------------------------------------------------------------------------------------------------

TEST_F(Http2ConnectionEndTest, SendsTheClientOfAnOldConnectionElsewhere) {
  start({.age_ns = kShortNs});
  runner_->hold();
  const std::int64_t began_ns = now_ns();
  Http2Client client(port_);
  const std::int32_t before = client.begin(kPredict, request(1));
  ASSERT_TRUE(client.pump([&] { return client.goaways() == 1; }));
  EXPECT_GE(now_ns() - began_ns, kShortNs * 9 / 10);
  EXPECT_EQ(client.goaway_error(), static_cast<std::uint32_t>(NGHTTP2_NO_ERROR));
  ASSERT_TRUE(client.pump([&] { return client.goaways() == 2; }));
  runner_->release();
  expect_ok(client.wait(before), response(1));
  EXPECT_TRUE(client.wait_closed());
  Http2Client next(port_);
  expect_ok(next.call(kPredict, request(2)), response(2));
}

TEST_F(Http2ConnectionEndTest, ClosesAnOldConnectionAfterItsGrace) {
  start({.age_ns = kShortNs, .age_grace_ns = kShortNs});
  runner_->hold();
  const std::int64_t began_ns = now_ns();
  Http2Client client(port_);
  const std::int32_t call = client.begin(kPredict, request(1));
  EXPECT_TRUE(client.wait_closed());
  EXPECT_GE(now_ns() - began_ns, kShortNs * 19 / 10);
  EXPECT_EQ(client.stream(call).header_blocks, 0);
}

// ---- Clients that have gone -----------------------------------------------------------------------------------------

TEST_F(Http2ConnectionEndTest, ClosesAConnectionWhoseClientDoesNotAnswerPings) {
  start({.ping_ns = kShortNs, .ping_answer_ns = kShortNs});
  const std::int64_t began_ns = now_ns();
  RawClient gone(port_);
  gone.send(std::string(kPreface) + frame(NGHTTP2_SETTINGS, 0, 0, ""));
  EXPECT_NE(gone.receive_all().find(frame(NGHTTP2_PING, 0, 0, "\0\0\0\0\0\0\0\0"s)), std::string::npos);
  EXPECT_GE(now_ns() - began_ns, 2 * kShortNs);
}

TEST_F(Http2ConnectionEndTest, KeepsAConnectionWhoseClientAnswersPings) {
  start({.ping_ns = kShortNs / 4, .ping_answer_ns = kShortNs});
  Http2Client client(port_);
  ASSERT_TRUE(client.pump([&] { return client.pings() == 8; }));
  expect_ok(client.call(kPredict, request(1)), response(1));
}

}  // namespace
}  // namespace headrace
