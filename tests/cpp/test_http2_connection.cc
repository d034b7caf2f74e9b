// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "grpc_server_fixture.h"
#include "net/compression.h"

namespace headrace {
namespace {

using namespace std::string_literals;

using Http2ConnectionTest = GrpcServerTest;

// ---- Messages -------------------------------------------------------------------------------------------------------

TEST_F(Http2ConnectionTest, PutsAMessageTogetherFromFramesOfAnySize) {
  start();
  const std::string message = request(1, 40);
  for (std::size_t size = 1; size <= message.size() + 5; size += size < 12 ? 1 : 17) {
    Http2Client client(port_);
    client.chunk_bytes_max = size;
    expect_ok(client.call(kPredict, message), response(1, 40));
  }
}

TEST_F(Http2ConnectionTest, PutsAMessageTogetherFromBytesThatComeOneByOne) {
  start();
  Http2Client client(port_);
  ASSERT_TRUE(client.flush());
  const std::int32_t id = client.begin(kPredict, request(1));
  const std::uint8_t* data = nullptr;
  for (ssize_t size = 0; (size = nghttp2_session_mem_send(client.session(), &data)) > 0;)
    for (ssize_t i = 0; i < size; ++i) ASSERT_TRUE(client.socket().send({reinterpret_cast<const char*>(data) + i, 1}));
  expect_ok(client.wait(id), response(1));
}

TEST_F(Http2ConnectionTest, AnswersAMessageBeforeTheClientsSideEnds) {
  start();
  Http2Client client(port_);
  const std::int32_t id = client.begin(Http2Client::grpc_headers(kPredict), framed(request(1)), false);
  expect_ok(client.wait(id), response(1));
  EXPECT_EQ(client.stream(id).error, static_cast<std::uint32_t>(NGHTTP2_NO_ERROR));
}

TEST_F(Http2ConnectionTest, LetsFurtherMessagesPass) {
  start();
  Http2Client client(port_);
  expect_ok(client.wait(client.begin(Http2Client::grpc_headers(kPredict), framed(request(1)) + framed(request(2)))),
            response(1));
  expect_ok(client.wait(client.begin(Http2Client::grpc_headers(kPredict), framed(request(1)) + "ab")), response(1));
}

TEST_F(Http2ConnectionTest, RefusesWhatIsNoMessage) {
  start();
  Http2Client client(port_);
  const auto answer = [&](std::string bytes) -> const Http2Client::Stream& {
    return client.wait(client.begin(Http2Client::grpc_headers(kPredict), std::move(bytes)));
  };
  const std::string early = "the client's side ended before its message did";
  expect_error(answer(""), Code::kInternal, early);
  expect_error(answer("\0\0\0"s), Code::kInternal, early);
  expect_error(answer("\0\0\0\0\2a"s), Code::kInternal, early);
  expect_error(answer("\2\0\0\0\1a"s), Code::kInternal, "neither 0 nor 1");
  expect_error(answer(framed("a", true)), Code::kInternal, "Compression bit set but no encoding configured");
  expect_ok(client.call(kPredict, request(1)), response(1));
}

TEST_F(Http2ConnectionTest, RefusesALengthOverTheLimitBeforeTheBytesCome) {
  start({.message_bytes_max = 1000});
  Http2Client client(port_);
  const std::int32_t id = client.begin(Http2Client::grpc_headers(kPredict), "\0\0\0\3\xe9"s, false);
  expect_error(client.wait(id), Code::kResourceExhausted, "SERVER: Received message larger than max (1001 vs. 1000)");
  const std::string largest(1000, '\xff');
  expect_error(client.call(kPredict, largest), Code::kInvalidArgument, "");
}

TEST_F(Http2ConnectionTest, TakesAndSendsCompressedMessages) {
  start({.message_bytes_max = 100'000});
  Http2Client client(port_);
  const std::string plain = request(1, 1000);
  for (Encoding encoding : {Encoding::kGzip, Encoding::kDeflate}) {
    const std::string name(encoding_name(encoding));
    std::string small;
    ASSERT_TRUE(deflate(encoding, std::as_bytes(std::span(plain)), &small).ok());
    Http2Client::Headers headers = Http2Client::grpc_headers(kPredict);
    headers.emplace_back("grpc-encoding", name);
    // A client that does not say what it accepts gets it plain.
    expect_ok(client.wait(client.begin(headers, framed(small, true))), response(1, 1000));
    expect_ok(client.wait(client.begin(headers, framed(plain))), response(1, 1000));
    headers.emplace_back("grpc-accept-encoding", name);
    const auto& answer = client.wait(client.begin(headers, framed(small, true)));
    EXPECT_EQ(answer.status(), "0") << answer.text();
    EXPECT_EQ(answer.header("grpc-encoding"), name);
    ASSERT_EQ(answer.data.substr(0, 1), "\1");
    std::string inflated;
    ASSERT_TRUE(inflate(encoding, std::as_bytes(std::span(answer.data).subspan(5)), 1 << 20, &inflated).ok());
    EXPECT_TRUE(inflated == response(1, 1000));
    expect_error(client.wait(client.begin(headers, framed("garbage", true))), Code::kInternal, "");
    const std::string zeros(1 << 20, '\0');
    std::string bomb;
    ASSERT_TRUE(deflate(encoding, std::as_bytes(std::span(zeros)), &bomb).ok());
    expect_error(client.wait(client.begin(headers, framed(bomb, true))), Code::kResourceExhausted, "");
  }
  const auto& unknown = client.call(kPredict, plain, {{"grpc-encoding", "snappy"}});
  expect_error(unknown, Code::kUnimplemented, "snappy");
  EXPECT_EQ(unknown.header("grpc-accept-encoding"), kAcceptedEncodings);
}

// ---- Headers --------------------------------------------------------------------------------------------------------

TEST_F(Http2ConnectionTest, AnswersWhatIsNotGrpcInHttpsWay) {
  start();
  Http2Client client(port_);
  for (const char* type : {"application/json", "application/grpc-web", ""}) {
    Http2Client::Headers headers = Http2Client::grpc_headers(kPredict);
    headers.back().second = type;
    const auto& answer = client.wait(client.begin(headers, framed(request(1))));
    EXPECT_EQ(answer.header(":status"), "415") << type;
    EXPECT_EQ(answer.status(), "");
  }
  Http2Client::Headers get = Http2Client::grpc_headers(kPredict);
  get[0].second = "GET";
  EXPECT_EQ(client.wait(client.begin(get, "")).header(":status"), "405");
  Http2Client::Headers proto = Http2Client::grpc_headers(kPredict);
  proto.back().second = "application/grpc+proto";
  expect_ok(client.wait(client.begin(proto, framed(request(1)))), response(1));
}

TEST_F(Http2ConnectionTest, KnowsNoOtherPaths) {
  start();
  Http2Client client(port_);
  for (const char* path : {"/a.B/C", "/", "/tensorflow.serving.PredictionService/Predict2"})
    expect_error(client.call(path, request(1)), Code::kUnimplemented, "Method not found!");
}

TEST_F(Http2ConnectionTest, LetsOtherMetadataPass) {
  start();
  Http2Client client(port_);
  expect_ok(client.call(kPredict, request(1), {{"trace-bin", "AAEC"}, {"user-agent", "test"}, {"a", "b"}}),
            response(1));
}

TEST_F(Http2ConnectionTest, LimitsTheHeadersOfACall) {
  start({.header_bytes_max = 2000});
  Http2Client client(port_);
  EXPECT_TRUE(client.flush());
  EXPECT_EQ(client.setting(NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE), 2000u);
  expect_ok(client.call(kPredict, request(1), {{"x", std::string(1000, 'x')}}), response(1));
  expect_error(client.call(kPredict, request(1), {{"x", std::string(2000, 'x')}}), Code::kResourceExhausted,
               "received metadata size exceeds limit");
  client.begin(kPredict, request(1), {{"x", std::string(9000, 'x')}});
  EXPECT_TRUE(client.wait_closed());
  EXPECT_EQ(client.goaway_error(), static_cast<std::uint32_t>(NGHTTP2_ENHANCE_YOUR_CALM));
}

TEST_F(Http2ConnectionTest, EndsAtAFloodOfContinuations) {
  start();
  RawClient client(port_);
  std::string bytes = std::string(kPreface) + frame(NGHTTP2_SETTINGS, 0, 0, "") + frame(NGHTTP2_HEADERS, 0, 1, "\x82");
  for (int i = 0; i < 1000; ++i) bytes += frame(NGHTTP2_CONTINUATION, 0, 1, "");
  client.send(bytes);
  EXPECT_EQ(goaway_error(client.receive_all()), static_cast<std::uint32_t>(NGHTTP2_ENHANCE_YOUR_CALM));
}

// ---- The connection -------------------------------------------------------------------------------------------------

TEST_F(Http2ConnectionTest, ClosesOnWhatIsNotHttp2) {
  start();
  std::mt19937 random(3);
  std::string noise(5000, '\0');
  for (char& c : noise) c = static_cast<char>(random());
  for (const std::string& bytes : {"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"s, noise, std::string(kPreface) + noise,
                                   std::string(kPreface) + "GET / HTTP/1.1\r\n\r\n"}) {
    RawClient client(port_);
    client.send(bytes);
    bool reset = true;
    client.receive_all(&reset);
    EXPECT_FALSE(reset);
  }
  Http2Client client(port_);
  expect_ok(client.call(kPredict, request(1)), response(1));
}

TEST_F(Http2ConnectionTest, AnswersPings) {
  start();
  Http2Client client(port_);
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(client.flush());
}

TEST_F(Http2ConnectionTest, EndsAFloodOfResets) {
  start();
  RawClient client(port_);
  ASSERT_TRUE(client.send(std::string(kPreface) + frame(NGHTTP2_SETTINGS, 0, 0, "")));
  bool open = true;
  for (std::uint32_t stream = 1; open && stream < 200'000; stream += 2)
    open = client.send(frame(NGHTTP2_HEADERS, NGHTTP2_FLAG_END_HEADERS, stream,
                             "\x83\x84\x86\x41\x01"
                             "a") +
                       frame(NGHTTP2_RST_STREAM, 0, stream, "\0\0\0\x08"s));
  EXPECT_FALSE(open);
  EXPECT_EQ(goaway_error(client.receive_all()), static_cast<std::uint32_t>(NGHTTP2_ENHANCE_YOUR_CALM));
}

TEST_F(Http2ConnectionTest, LimitsTheCallsAtATime) {
  start({.streams_max = 4});
  runner_->hold();
  Http2Client client(port_);
  ASSERT_TRUE(client.flush());
  EXPECT_EQ(client.setting(NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS), 4u);
  std::vector<std::int32_t> calls;
  for (int i = 0; i < 10; ++i) calls.push_back(client.begin(kPredict, request(static_cast<float>(i))));
  ASSERT_TRUE(client.flush());
  ASSERT_TRUE(runner_->wait_for_runs(1));
  while (lane_->was_waiting_rows() + runner_->rows_of_runs().front() < 4) ASSERT_TRUE(client.flush());
  EXPECT_LE(lane_->was_waiting_rows(), 3);
  runner_->release();
  for (int i = 0; i < 10; ++i) expect_ok(client.wait(calls[i]), response(static_cast<float>(i)));
}

// What a client begins before it has heard of the limit it may begin again elsewhere.
TEST_F(Http2ConnectionTest, RefusesTheCallsBeyondThoseUnprocessed) {
  start({.streams_max = 4});
  runner_->hold();
  Http2Client client(port_);
  std::vector<std::int32_t> calls;
  for (int i = 0; i < 6; ++i) calls.push_back(client.begin(kPredict, request(static_cast<float>(i))));
  for (int i = 4; i < 6; ++i)
    EXPECT_EQ(client.wait(calls[i]).error, static_cast<std::uint32_t>(NGHTTP2_REFUSED_STREAM));
  runner_->release();
  for (int i = 0; i < 4; ++i) expect_ok(client.wait(calls[i]), response(static_cast<float>(i)));
}

TEST_F(Http2ConnectionTest, LimitsTheRequestsOfAllConnections) {
  start({.loops = 2, .requests_max = 3});
  runner_->hold();
  Http2Client first(port_), second(port_);
  const std::int32_t a = first.begin(kPredict, request(1)), b = first.begin(kPredict, request(2));
  ASSERT_TRUE(first.flush());
  const std::int32_t c = second.begin(kUnary, "x");
  ASSERT_TRUE(second.flush());
  for (Http2Client* client : {&first, &second}) {
    for (const std::string& path : {kPredict, kUnary, kPerMessage})
      expect_error(client->call(path, request(3)), Code::kResourceExhausted,
                   "the server has 3 requests under way, and takes no more (--grpc_requests_max)");
    expect_ok(client->call(kHealthCheck, ""), std::string("\x08\x01"));
  }
  second.reset(c);
  ASSERT_TRUE(second.flush());
  const std::int32_t d = second.begin(kPredict, request(4));
  ASSERT_TRUE(second.flush());
  runner_->release();
  expect_ok(first.wait(a), response(1));
  expect_ok(first.wait(b), response(2));
  expect_ok(second.wait(d), response(4));
  for (int i = 0; i < 10; ++i) expect_ok(second.call(kPredict, request(5)), response(5));
}

TEST_F(Http2ConnectionTest, CarriesLargeMessagesBothWays) {
  start();
  Http2Client client(port_);
  std::vector<std::int32_t> calls;
  for (int i = 0; i < 3; ++i) calls.push_back(client.begin(kPredict, request(static_cast<float>(i), 1 << 20)));
  for (int i = 0; i < 3; ++i) expect_ok(client.wait(calls[i]), response(static_cast<float>(i), 1 << 20));
}

TEST_F(Http2ConnectionTest, AClientThatDoesNotReadHoldsUpOnlyItself) {
  start();
  Http2Client closed_window(port_, 0);
  const std::int32_t waiting = closed_window.begin(kPredict, request(5, 1000));
  ASSERT_TRUE(closed_window.flush());
  Http2Client deaf(port_, 0x7FFFFFFF);  // takes everything, but does not read it off its socket
  deaf.begin(kUnary, "large");
  ASSERT_TRUE(deaf.flush());
  handlers_.next()->answer({}, std::string(16 << 20, 'x'));
  Http2Client client(port_);
  for (int i = 0; i < 20; ++i) expect_ok(client.call(kPredict, request(2)), response(2));
  EXPECT_EQ(closed_window.stream(waiting).data, "");
  nghttp2_submit_window_update(closed_window.session(), NGHTTP2_FLAG_NONE, waiting, 1 << 20);
  expect_ok(closed_window.wait(waiting), response(5, 1000));
}

TEST_F(Http2ConnectionTest, LimitsTheBytesOfAllMessages) {
  start({.buffered_bytes_max = 1 << 20});
  Http2Client client(port_);
  const std::string part = "\0\0\x0c\0\0"s + std::string(0xc0000 - 1, 'x');
  const std::int32_t half = client.begin(Http2Client::grpc_headers(kPredict), part, false);
  // Who only announces a large message takes nothing from the others.
  const std::int32_t announced = client.begin(Http2Client::grpc_headers(kPredict), part.substr(0, 5), false);
  ASSERT_TRUE(client.pump([&] { return client.sent_all(half); }));
  ASSERT_TRUE(client.flush());
  Http2Client other(port_);
  expect_error(other.wait(other.begin(Http2Client::grpc_headers(kPredict), part, false)), Code::kResourceExhausted,
               "they would pass the limit of 1048576");
  expect_ok(other.call(kPredict, request(1)), response(1));
  client.reset(half);
  ASSERT_TRUE(client.flush());
  expect_ok(other.call(kPredict, request(1, 100'000)), response(1, 100'000));
  EXPECT_FALSE(client.stream(announced).closed);
}

// A handler may take its time, and its message is there until it is let go of.
TEST_F(Http2ConnectionTest, CountsTheMessagesThatHandlersHave) {
  start({.buffered_bytes_max = 1 << 20});
  Http2Client client(port_);
  const std::string message(700'000, 'x');
  const std::int32_t first = client.begin(kUnary, message);
  while (!client.sent_all(first)) ASSERT_TRUE(client.flush());
  ASSERT_TRUE(client.flush());
  std::unique_ptr<HandlerCall> call = handlers_.next();
  EXPECT_TRUE(call->message() == message);
  expect_error(client.call(kUnary, message), Code::kResourceExhausted, "they would pass the limit of 1048576");
  call->answer({}, "done");
  expect_ok(client.wait(first), "done");
  call = nullptr;
  const std::int32_t second = client.begin(kUnary, message);
  while (!client.sent_all(second)) ASSERT_TRUE(client.flush());
  ASSERT_TRUE(client.flush());
  EXPECT_TRUE(handlers_.next()->message() == message);
}

// A message of so many zeros, deflated, in a call of its own.
std::int32_t begin_bomb(Http2Client& client, std::size_t bytes) {
  Http2Client::Headers headers = Http2Client::grpc_headers(kPredict);
  headers.emplace_back("grpc-encoding", "deflate");
  const std::string zeros(bytes, '\0');
  std::string bomb;
  EXPECT_TRUE(deflate(Encoding::kDeflate, std::as_bytes(std::span(zeros)), &bomb).ok());
  const std::int32_t id = client.begin(headers, framed(bomb, true));
  while (!client.sent_all(id)) EXPECT_TRUE(client.flush());
  return id;
}

TEST_F(Http2ConnectionTest, ALargeCompressedMessageHoldsUpNobody) {
  start();
  Http2Client client(port_), other(port_);
  bool overtaken = false;
  for (int attempt = 0; attempt < 5 && !overtaken; ++attempt) {
    const std::int32_t id = begin_bomb(client, 64 << 20);
    expect_ok(other.call(kPredict, request(1)), response(1));
    ASSERT_TRUE(client.flush());
    overtaken = !client.stream(id).closed;
    expect_error(client.wait(id), Code::kInvalidArgument, "");
  }
  EXPECT_TRUE(overtaken);
}

TEST_F(Http2ConnectionTest, ClientsMayLeaveAndServersStopWhileAMessageIsInflated) {
  start();
  Http2Client client(port_);
  client.reset(begin_bomb(client, 64 << 20));
  expect_ok(client.call(kPredict, request(1)), response(1));
  {
    Http2Client gone(port_);
    begin_bomb(gone, 64 << 20);
  }
  const std::int32_t id = begin_bomb(client, 64 << 20);
  ASSERT_TRUE(client.flush());
  server_->stop(0, kSecondNs);
  EXPECT_NE(client.wait(id).status(), "0");
}

TEST_F(Http2ConnectionTest, LargeResponsesAreCompressedToo) {
  start();
  Http2Client client(port_);
  for (Encoding encoding : {Encoding::kGzip, Encoding::kDeflate}) {
    const std::string name(encoding_name(encoding));
    const Http2Client::Headers accepts = {{"grpc-encoding", name}, {"grpc-accept-encoding", name}};
    const auto& answer = client.call(kPredict, request(1, 100'000), accepts);
    EXPECT_EQ(answer.status(), "0") << answer.text();
    EXPECT_EQ(answer.header("grpc-encoding"), name);
    std::string inflated;
    const Status status = inflate(encoding, std::as_bytes(std::span(answer.data).subspan(5)), 1 << 20, &inflated);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(inflated == response(1, 100'000));
    const std::int32_t id = client.begin(kUnary, "message", accepts);
    ASSERT_TRUE(client.flush());
    handlers_.next()->answer({}, std::string(300'000, 'x'));
    const auto& other = client.wait(id);
    ASSERT_TRUE(inflate(encoding, std::as_bytes(std::span(other.data).subspan(5)), 1 << 20, &inflated).ok());
    EXPECT_TRUE(inflated == std::string(300'000, 'x'));
  }
}

TEST_F(Http2ConnectionTest, CountsWhatComesOutOfCompressedMessages) {
  start({.buffered_bytes_max = 1 << 20});
  Http2Client client(port_);
  for (Encoding encoding : {Encoding::kGzip, Encoding::kDeflate}) {
    Http2Client::Headers headers = Http2Client::grpc_headers(kUnary);
    headers.emplace_back("grpc-encoding", encoding_name(encoding));
    const std::string much(64 << 20, 'x'), little(200'000, 'x');
    std::string large;
    ASSERT_TRUE(deflate(encoding, std::as_bytes(std::span(much)), &large).ok());
    expect_error(client.wait(client.begin(headers, framed(large, true))), Code::kResourceExhausted,
                 "they would pass the limit of 1048576 (--grpc_buffered_bytes_max)");
    std::string small;
    ASSERT_TRUE(deflate(encoding, std::as_bytes(std::span(little)), &small).ok());
    const std::int32_t id = client.begin(headers, framed(small, true));
    ASSERT_TRUE(client.flush());
    const std::unique_ptr<HandlerCall> call = handlers_.next();
    EXPECT_TRUE(call->message() == little);
    call->answer({}, "done");
    expect_ok(client.wait(id), "done");
  }
}

TEST_F(Http2ConnectionTest, LimitsTheBytesOfResponsesThatNobodyReads) {
  start({.buffered_bytes_max = 1 << 20});
  Http2Client client(port_, 0);
  std::vector<std::int32_t> calls;
  for (int i = 0; i < 12; ++i) {
    calls.push_back(client.begin(kPredict, request(1, 25'000)));
    while (runner_->rows_of_runs().size() <= static_cast<std::size_t>(i) && !client.stream(calls[i]).closed)
      ASSERT_TRUE(client.flush());
  }
  expect_error(client.wait(calls.back()), Code::kResourceExhausted, "would pass the limit of 1048576");
  client.socket().disconnect();
  Http2Client other(port_);
  for (;;) {  // until the server has seen that
    const auto& answer = other.call(kPredict, request(1, 100'000));
    if (answer.status() != "8") return expect_ok(answer, response(1, 100'000));
  }
}

TEST_F(Http2ConnectionTest, LimitsTheConnections) {
  start({.connections_max = 2});
  auto first = std::make_unique<Http2Client>(port_);
  Http2Client second(port_);
  ASSERT_TRUE(first->flush());
  ASSERT_TRUE(second.flush());
  EXPECT_TRUE(Http2Client(port_).wait_closed());
  first = nullptr;
  for (;;) {  // until the server has seen that
    Http2Client third(port_);
    if (third.flush()) return expect_ok(third.call(kPredict, request(1)), response(1));
  }
}

// Whatever a client does, others are served, and every call of it is answered or forgotten.
TEST_F(Http2ConnectionTest, SurvivesRandomDamage) {
  start();
  std::mt19937 random(7);
  std::string session;
  {
    Http2Client model(port_);
    for (int i = 0; i < 5; ++i) model.begin(i % 2 ? kPredict : kHealthCheck, request(1, 10));
    const std::uint8_t* data = nullptr;
    for (ssize_t size = 0; (size = nghttp2_session_mem_send(model.session(), &data)) > 0;)
      session.append(reinterpret_cast<const char*>(data), static_cast<std::size_t>(size));
  }
  for (int i = 0; i < 300; ++i) {
    std::string bytes = session;
    for (int damage = 0; damage < 4; ++damage)
      bytes[kPreface.size() + random() % (bytes.size() - kPreface.size())] = static_cast<char>(random());
    bytes.resize(bytes.size() - random() % 100);
    RawClient client(port_);
    client.send(bytes);
  }
  Http2Client client(port_);
  expect_ok(client.call(kPredict, request(1)), response(1));
  EXPECT_TRUE(server_->stop(60 * kSecondNs, 0));
}

}  // namespace
}  // namespace headrace
