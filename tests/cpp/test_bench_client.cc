// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <future>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "fake_grpc_server.h"
#include "fake_request.h"
#include "net/bench_client.h"

namespace headrace {
namespace {

using Answer = FakeGrpcServer::Answer;
using Call = FakeGrpcServer::Call;

constexpr std::int64_t kMillisecond = 1'000'000;
constexpr std::int64_t kLimitNs = std::chrono::nanoseconds(kEventLimit).count();

Answer echo(const Call& call) { return {.message = call.body.substr(5)}; }

BenchPlan plan_for(const FakeGrpcServer& server, std::vector<std::string> messages = {"hello"}) {
  BenchPlan plan;
  plan.target = {.host = "127.0.0.1", .port = server.port(), .path = "/a.Service/Method"};
  plan.messages = std::move(messages);
  return plan;
}

BenchReport run(BenchPlan plan) {
  BenchClient client(std::move(plan));
  EXPECT_EQ(client.start().message(), "");
  EXPECT_TRUE(client.wait_for(kLimitNs));
  return client.take_report();
}

std::uint64_t count(const BenchReport& report, Code code) { return report.by_code[static_cast<std::size_t>(code)]; }
const std::string& text(const BenchReport& report, Code code) { return report.texts[static_cast<std::size_t>(code)]; }
std::uint64_t answered(const BenchReport& report) {
  return std::accumulate(report.by_code.begin(), report.by_code.end(), std::uint64_t{0});
}

// --- a closed loop
// ----------------------------------------------------------------------------------------------------

TEST(BenchClient, AClosedLoopSendsSoManyCallsOverSoManyConnections) {
  FakeGrpcServer server(echo);
  BenchPlan plan = plan_for(server);
  plan.concurrency = 7;
  plan.connections = 3;
  plan.threads = 2;
  plan.requests = 1000;
  const BenchReport report = run(plan);
  EXPECT_TRUE(report.status.ok());
  EXPECT_EQ(count(report, Code::kOk), 1000u);
  EXPECT_EQ(answered(report), 1000u);
  EXPECT_EQ(report.latency.count(), 1000u);
  EXPECT_GT(report.latency.min_ns(), 0);
  EXPECT_EQ(report.warm_up, 0u);
  EXPECT_EQ(report.unanswered, 0u);
  EXPECT_EQ(server.calls(), 1000);
  EXPECT_EQ(server.connections(), 3);
}

TEST(BenchClient, NoMoreThanItsConcurrencyIsUnderWay) {
  FakeGrpcServer silent([](const Call&) { return Answer{.silent = true}; });
  BenchPlan plan = plan_for(silent);
  plan.concurrency = 5;
  plan.patience_ns = 50 * kMillisecond;
  const BenchReport report = run(plan);
  EXPECT_EQ(silent.calls(), 5);
  EXPECT_EQ(report.unanswered, 5u);
  EXPECT_EQ(report.status.code(), Code::kDeadlineExceeded);
}

TEST(BenchClient, ACallSaysWhatGrpcWants) {
  std::promise<Call> seen;
  FakeGrpcServer server([&](const Call& call) {
    seen.set_value(call);
    return echo(call);
  });
  BenchPlan plan = plan_for(server, {"abc"});
  plan.target.timeout = "250m";
  plan.requests = 1;
  EXPECT_EQ(count(run(plan), Code::kOk), 1u);
  const Call call = seen.get_future().get();
  EXPECT_EQ(call.headers.at(":method"), "POST");
  EXPECT_EQ(call.headers.at(":scheme"), "http");
  EXPECT_EQ(call.headers.at(":path"), "/a.Service/Method");
  EXPECT_EQ(call.headers.at(":authority"), "127.0.0.1:" + server.port());
  EXPECT_EQ(call.headers.at("te"), "trailers");
  EXPECT_EQ(call.headers.at("content-type"), "application/grpc");
  EXPECT_EQ(call.headers.at("grpc-timeout"), "250m");
  EXPECT_EQ(call.body, FakeGrpcServer::framed("abc"));
}

TEST(BenchClient, ItsDurationBeginsAfterTheWarmUp) {
  FakeGrpcServer server(echo);
  BenchPlan plan = plan_for(server);
  plan.duration_ns = 50 * kMillisecond;
  plan.warm_up_ns = 50 * kMillisecond;
  BenchClient client(plan);
  ASSERT_TRUE(client.start().ok());
  ASSERT_TRUE(client.wait_for(kLimitNs));
  EXPECT_GE(client.was_progress().elapsed_ns, 100 * kMillisecond);
  const BenchReport report = client.take_report();
  EXPECT_GT(report.warm_up, 0u);
  EXPECT_GT(count(report, Code::kOk), 0u);
  EXPECT_EQ(report.warm_up + answered(report), static_cast<std::uint64_t>(server.calls()));
  EXPECT_EQ(report.latency.count(), count(report, Code::kOk));
}

TEST(BenchClient, RequestsCountWithoutTheWarmUp) {
  FakeGrpcServer server(echo);
  BenchPlan plan = plan_for(server);
  plan.requests = 10;
  plan.warm_up_ns = 20 * kMillisecond;
  const BenchReport report = run(plan);
  EXPECT_EQ(count(report, Code::kOk), 10u);
  EXPECT_EQ(report.warm_up + 10, static_cast<std::uint64_t>(server.calls()));
}

TEST(BenchClient, LargeMessagesTravelWholeInBothDirections) {
  FakeGrpcServer server(echo);
  std::string large(3 << 20, '\0');
  for (std::size_t i = 0; i < large.size(); ++i) large[i] = static_cast<char>(i * 7 + i / 251);
  BenchPlan plan = plan_for(server, {large, ""});
  plan.target.keep_answers = true;
  plan.concurrency = 3;
  plan.requests = 8;
  const BenchReport report = run(plan);
  ASSERT_EQ(count(report, Code::kOk), 8u);
  ASSERT_EQ(report.answers.size(), 2u);
  EXPECT_TRUE((report.answers[0] == BenchReport::Answers{{large, 4}}));
  EXPECT_EQ(report.answers[1], (BenchReport::Answers{{"", 4}}));
}

TEST(BenchClient, EachMessageKeepsItsOwnAnswers) {
  std::atomic<int> calls{0};
  FakeGrpcServer server(
      [&](const Call& call) { return Answer{.message = call.body.substr(5) + (++calls % 10 == 0 ? "?" : "!")}; });
  BenchPlan plan = plan_for(server, {"a", "b", "c"});
  plan.target.keep_answers = true;
  plan.threads = plan.connections = plan.concurrency = 2;
  plan.requests = 300;
  const BenchReport report = run(plan);
  ASSERT_EQ(report.answers.size(), 3u);
  std::uint64_t seen = 0;
  std::uint64_t odd = 0;
  for (std::size_t message = 0; message < 3; ++message) {
    for (const auto& [answer, times] : report.answers[message]) {
      EXPECT_EQ(answer[0], "abc"[message]);
      seen += times;
      if (answer[1] == '?') odd += times;
    }
  }
  EXPECT_EQ(seen, 300u);
  EXPECT_EQ(odd, 30u);
  EXPECT_EQ(report.answers_dropped, 0u);
}

// --- an open loop
// -----------------------------------------------------------------------------------------------------

TEST(BenchClient, AnOpenLoopSendsEachCallAtItsTimeHoweverSlowTheServerIs) {
  FakeGrpcServer server([](const Call&) { return Answer{.silent = true}; });
  BenchPlan plan = plan_for(server);
  plan.arrivals_ns = {0, 10 * kMillisecond, 20 * kMillisecond, 30 * kMillisecond};
  plan.patience_ns = 60 * kMillisecond;
  plan.connections = 2;
  const BenchReport report = run(plan);
  EXPECT_EQ(server.calls(), 4);
  EXPECT_EQ(report.unanswered, 4u);
  EXPECT_EQ(report.unsent, 0u);
  EXPECT_EQ(report.lateness.count(), 4u);
  EXPECT_EQ(report.status.code(), Code::kDeadlineExceeded);
}

TEST(BenchClient, ALatencyCountsFromTheTimeThatWasMeant) {
  // The server takes in one call at a time, and holds the first for 50 ms: the others wait as long, less their delay.
  std::atomic<int> calls{0};
  FakeGrpcServer server(
      [&](const Call& call) {
        if (++calls == 1) {
          std::promise<void> never;
          never.get_future().wait_for(std::chrono::milliseconds(50));
        }
        return echo(call);
      },
      {{NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, 1}});
  BenchPlan plan = plan_for(server);
  for (int i = 0; i < 10; ++i) plan.arrivals_ns.push_back(i * kMillisecond);
  const BenchReport report = run(plan);
  ASSERT_EQ(count(report, Code::kOk), 10u);
  EXPECT_GE(report.latency.min_ns(), 40 * kMillisecond);
  EXPECT_GE(report.latency.max_ns(), 50 * kMillisecond);
}

TEST(BenchClient, AnOpenLoopLeavesOutTheWarmUp) {
  FakeGrpcServer server(echo);
  BenchPlan plan = plan_for(server);
  plan.threads = plan.connections = 2;
  for (int i = 0; i < 100; ++i) plan.arrivals_ns.push_back(i * kMillisecond / 10);
  plan.warm_up_ns = 3 * kMillisecond;
  const BenchReport report = run(plan);
  EXPECT_EQ(report.warm_up, 30u);
  EXPECT_EQ(count(report, Code::kOk), 70u);
  EXPECT_EQ(report.lateness.count(), 70u);
  EXPECT_GE(report.last_answer_ns, 6 * kMillisecond);
  EXPECT_EQ(server.calls(), 100);
}

// --- what goes wrong
// --------------------------------------------------------------------------------------------------

TEST(BenchClient, ErrorsCountByTheirStatusWithTheFirstText) {
  std::atomic<int> calls{0};
  FakeGrpcServer server([&](const Call& call) -> Answer {
    switch (++calls % 4) {
      case 1:
        return {.status = 5, .text = "no%20such model"};
      case 2:
        return {.status = 77, .text = "of a later time"};
      case 3:
        return {.status = 14, .text = "full"};
      default:
        return echo(call);
    }
  });
  BenchPlan plan = plan_for(server);
  plan.requests = 40;
  const BenchReport report = run(plan);
  EXPECT_EQ(count(report, Code::kOk), 10u);
  EXPECT_EQ(count(report, Code::kNotFound), 10u);
  EXPECT_EQ(text(report, Code::kNotFound), "no%20such model");
  EXPECT_EQ(count(report, Code::kUnknown), 10u);
  EXPECT_EQ(count(report, Code::kUnavailable), 10u);
  EXPECT_EQ(report.latency.count(), 10u);
}

struct Broken {
  Answer answer;
  Code code;
  std::string text;
};

class BenchClientBroken : public testing::TestWithParam<Broken> {};

TEST_P(BenchClientBroken, AnAnswerThatIsNoneHasTheCodeThatGrpcGivesIt) {
  FakeGrpcServer server([](const Call&) { return GetParam().answer; });
  BenchPlan plan = plan_for(server);
  plan.requests = 3;
  const BenchReport report = run(plan);
  EXPECT_EQ(count(report, GetParam().code), 3u);
  EXPECT_NE(text(report, GetParam().code).find(GetParam().text), std::string::npos) << text(report, GetParam().code);
  EXPECT_TRUE(report.status.ok());
}

const std::string kShort = FakeGrpcServer::framed("abc").substr(0, 6);
const std::string kLong = FakeGrpcServer::framed("abc") + "d";
const std::string kCompressed = "\1" + FakeGrpcServer::framed("abc").substr(1);

INSTANTIATE_TEST_SUITE_P(
    All, BenchClientBroken,
    testing::Values(Broken{{.reset = NGHTTP2_REFUSED_STREAM}, Code::kUnavailable, "REFUSED_STREAM"},
                    Broken{{.reset = NGHTTP2_CANCEL}, Code::kCancelled, "CANCEL"},
                    Broken{{.reset = NGHTTP2_ENHANCE_YOUR_CALM}, Code::kResourceExhausted, "ENHANCE_YOUR_CALM"},
                    Broken{{.reset = NGHTTP2_INTERNAL_ERROR}, Code::kInternal, "INTERNAL_ERROR"},
                    Broken{{.status = -1}, Code::kUnknown, "no grpc-status in an answer with HTTP status 200"},
                    Broken{{.status = -1, .http_status = "404"}, Code::kUnimplemented, "404"},
                    Broken{{.status = -1, .http_status = "503"}, Code::kUnavailable, "503"},
                    Broken{{.body = kShort}, Code::kInternal, "not one whole"},
                    Broken{{.body = kLong}, Code::kInternal, "not one whole"},
                    Broken{{.body = kCompressed}, Code::kInternal, "uncompressed"}));

TEST(BenchClient, AServerThatIsNotThereIsAnErrorThatNamesIt) {
  std::uint16_t port = 0;
  ::close(FakeGrpcServer::listen_on_a_free_port(&port));
  BenchPlan plan;
  plan.target = {.host = "127.0.0.1", .port = std::to_string(port), .path = "/a/b"};
  plan.messages = {""};
  BenchClient client(plan);
  const Status status = client.start();
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_EQ(status.message(), "cannot connect to 127.0.0.1:" + std::to_string(port) + ": Connection refused");
}

class BenchClientStranger : public testing::TestWithParam<std::pair<std::string, std::string>> {};

TEST_P(BenchClientStranger, AServerThatSpeaksNoHttp2IsAnErrorAtTheStart) {
  const auto& [greeting, complaint] = GetParam();
  std::uint16_t port = 0;
  const int listener = FakeGrpcServer::listen_on_a_free_port(&port);
  std::thread server([listener, &greeting = greeting] {
    const int fd = ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    EXPECT_EQ(::send(fd, greeting.data(), greeting.size(), MSG_NOSIGNAL), static_cast<ssize_t>(greeting.size()));
    ::shutdown(fd, SHUT_WR);
    char byte;
    while (::recv(fd, &byte, 1, 0) > 0) {
    }
    ::close(fd);
    ::close(listener);
  });
  BenchPlan plan;
  plan.target = {.host = "127.0.0.1", .port = std::to_string(port), .path = "/a/b"};
  plan.messages = {""};
  {
    BenchClient client(plan);
    const Status status = client.start();
    EXPECT_EQ(status.code(), Code::kUnavailable);
    EXPECT_EQ(status.message(), "lost the connection to 127.0.0.1:" + plan.target.port + ": " + complaint);
  }
  server.join();
}

INSTANTIATE_TEST_SUITE_P(All, BenchClientStranger,
                         testing::Values(std::pair("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n",
                                                   "what answers there is not HTTP/2"),
                                         std::pair("", "the server closed it")));

TEST(BenchClient, AConnectionThatIsClosedFailsItsCallsAndIsReplaced) {
  std::atomic<int> calls{0};
  FakeGrpcServer server([&](const Call& call) {
    Answer answer = echo(call);
    answer.closes_connection = ++calls == 50;
    return answer;
  });
  BenchPlan plan = plan_for(server);
  plan.requests = 100;
  const BenchReport report = run(plan);
  EXPECT_TRUE(report.status.ok()) << report.status.message();
  EXPECT_EQ(count(report, Code::kOk), 99u);
  EXPECT_EQ(count(report, Code::kUnavailable), 1u);
  EXPECT_NE(text(report, Code::kUnavailable).find("lost the connection"), std::string::npos);
  EXPECT_EQ(server.connections(), 2);
}

TEST(BenchClient, AConnectionThatSaysGoodbyeIsReplacedWithoutAnError) {
  std::atomic<int> calls{0};
  FakeGrpcServer server([&](const Call& call) {
    Answer answer = echo(call);
    answer.says_goodbye = ++calls % 10 == 0;
    return answer;
  });
  BenchPlan plan = plan_for(server);
  plan.requests = 35;
  const BenchReport report = run(plan);
  EXPECT_TRUE(report.status.ok()) << report.status.message();
  EXPECT_EQ(count(report, Code::kOk), 35u);
  EXPECT_EQ(server.connections(), 4);
}

TEST(BenchClient, AServerThatEndsEveryConnectionIsLeftAlone) {
  FakeGrpcServer server([](const Call&) { return Answer{.closes_connection = true}; });
  const BenchReport report = run(plan_for(server));
  EXPECT_EQ(report.status.code(), Code::kUnavailable);
  EXPECT_EQ(count(report, Code::kUnavailable), 11u);
  EXPECT_EQ(server.connections(), 11);
}

TEST(BenchClient, AServerThatGoesAwayEndsTheRunAndTheReportSaysWhy) {
  std::atomic<int> calls{0};
  std::promise<void> enough;
  FakeGrpcServer server([&](const Call& call) {
    if (++calls == 20) enough.set_value();
    return echo(call);
  });
  BenchClient client(plan_for(server));
  ASSERT_TRUE(client.start().ok());
  enough.get_future().wait();
  server.stop();
  ASSERT_TRUE(client.wait_for(kLimitNs));
  const BenchReport report = client.take_report();
  EXPECT_EQ(report.status.code(), Code::kUnavailable);
  EXPECT_NE(report.status.message().find("127.0.0.1"), std::string::npos) << report.status.message();
  EXPECT_GE(count(report, Code::kOk), 19u);
}

TEST(BenchClient, StoppingAbandonsWhatIsUnderWay) {
  FakeGrpcServer server([](const Call&) { return Answer{.silent = true}; });
  BenchPlan plan = plan_for(server);
  plan.threads = plan.connections = 2;
  plan.arrivals_ns = {0, 0, 0, kLimitNs, kLimitNs + 1};
  BenchClient client(plan);
  ASSERT_TRUE(client.start().ok());
  EXPECT_FALSE(client.wait_for(20 * kMillisecond));
  client.stop();
  ASSERT_TRUE(client.wait_for(kLimitNs));
  const BenchReport report = client.take_report();
  EXPECT_TRUE(report.status.ok());
  EXPECT_EQ(report.unanswered, 3u);
  EXPECT_EQ(report.unsent, 2u);
  EXPECT_EQ(answered(report), 0u);
}

TEST(BenchClient, ProgressCountsWhatIsAnswered) {
  std::atomic<int> calls{0};
  FakeGrpcServer server(
      [&](const Call& call) { return ++calls % 5 == 0 ? Answer{.status = 13, .text = "no"} : echo(call); });
  BenchPlan plan = plan_for(server);
  plan.requests = 50;
  BenchClient client(plan);
  ASSERT_TRUE(client.start().ok());
  ASSERT_TRUE(client.wait_for(kLimitNs));
  EXPECT_EQ(client.was_progress().answered, 50u);
  EXPECT_EQ(client.was_progress().failed, 10u);
}

}  // namespace
}  // namespace headrace
