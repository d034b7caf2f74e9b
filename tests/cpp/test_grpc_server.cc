// SPDX-License-Identifier: Apache-2.0

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "grpc_server_fixture.h"
#include "net/descriptor.h"

namespace headrace {
namespace {

TEST_F(GrpcServerTest, AnswersPredict) {
  start();
  Http2Client client(port_);
  expect_ok(client.call(kPredict, request(1)), response(1));
  expect_ok(client.call(kPredict, request(2)), response(2));
  EXPECT_EQ(client.goaways(), 0);
}

TEST_F(GrpcServerTest, AnswersManyCallsOnManyConnections) {
  start();
  std::vector<std::unique_ptr<Http2Client>> clients;
  std::vector<std::vector<std::int32_t>> calls(8);
  for (int c = 0; c < 8; ++c) {
    clients.push_back(std::make_unique<Http2Client>(port_));
    for (int i = 0; i < 200; ++i) calls[c].push_back(clients[c]->begin(kPredict, request(1000.F * c + i)));
  }
  for (int c = 0; c < 8; ++c)
    for (int i = 0; i < 200; ++i) expect_ok(clients[c]->wait(calls[c][i]), response(1000.F * c + i));
}

TEST_F(GrpcServerTest, RunsWhatOneReadBringsAsOneBatch) {
  start();
  Http2Client client(port_);
  expect_ok(client.call(kPredict, request(0)), response(0));
  std::vector<std::int32_t> calls;
  for (int i = 0; i < 32; ++i) calls.push_back(client.begin(kPredict, request(static_cast<float>(i))));
  // All of it in one segment.
  std::string bytes;
  const std::uint8_t* data = nullptr;
  for (ssize_t size = 0; (size = nghttp2_session_mem_send(client.session(), &data)) > 0;)
    bytes.append(reinterpret_cast<const char*>(data), static_cast<std::size_t>(size));
  ASSERT_TRUE(client.socket().send(bytes));
  for (int i = 0; i < 32; ++i) expect_ok(client.wait(calls[i]), response(static_cast<float>(i)));
  const std::vector<std::int64_t> rows = runner_->rows_of_runs();
  EXPECT_EQ(std::accumulate(rows.begin(), rows.end(), std::int64_t{0}), 33);
  EXPECT_LE(rows.size(), 4u);
}

TEST_F(GrpcServerTest, AnswersErrorsWithOneHeaderBlock) {
  start();
  Http2Client client(port_);
  expect_error(client.call(kPredict, "\xff"), Code::kInvalidArgument, "");
  expect_error(client.call(kPredict, ""), Code::kInvalidArgument, "Missing ModelSpec");
  const std::string other = bytes_field(1, bytes_field(1, "no%\xc3\xa9\n"));
  expect_error(client.call(kPredict, other), Code::kNotFound, "Latest(no%25%C3%A9%0A)");
  runner_->fail_with(Internal("broken"));
  expect_error(client.call(kPredict, request(1)), Code::kInternal, "broken");
  runner_->fail_with({});
  expect_ok(client.call(kPredict, request(1)), response(1));
}

TEST_F(GrpcServerTest, CutsLongErrorTexts) {
  start();
  Http2Client client(port_);
  runner_->fail_with(Internal(std::string(1024, 'x')));
  EXPECT_EQ(client.call(kPredict, request(1)).text(), std::string(1024, 'x'));
  runner_->fail_with(Internal(std::string(2000, 'x')));
  EXPECT_EQ(client.call(kPredict, request(1)).text(), std::string(1024, 'x') + "...TRUNCATED");
}

TEST_F(GrpcServerTest, AnswersAtTheDeadlineThoughTheRunGoesOn) {
  start();
  runner_->hold();
  Http2Client client(port_);
  expect_error(client.call(kPredict, request(1), {{"grpc-timeout", "50m"}}), Code::kDeadlineExceeded, "");
  expect_error(client.call(kPredict, request(1), {{"grpc-timeout", "0n"}}), Code::kDeadlineExceeded, "");
  expect_error(client.call(kPredict, request(1), {{"grpc-timeout", "soon"}}), Code::kInternal,
               "Error parsing 'grpc-timeout' metadata");
  runner_->release();
  expect_ok(client.call(kPredict, request(2), {{"grpc-timeout", "60S"}}), response(2));
}

TEST_F(GrpcServerTest, CancelsWhatTheClientResets) {
  start();
  runner_->hold();
  Http2Client client(port_);
  const std::int32_t running = client.begin(kPredict, request(1));
  ASSERT_TRUE(client.pump([&] { return !client.stream(running).data.empty() || client.flush(); }));
  ASSERT_TRUE(runner_->wait_for_runs(1));
  const std::int32_t waiting = client.begin(kPredict, request(2));
  ASSERT_TRUE(client.flush());
  client.reset(running);
  client.reset(waiting);
  ASSERT_TRUE(client.flush());
  EXPECT_EQ(lane_->was_waiting_rows(), 0);
  runner_->release();
  expect_ok(client.call(kPredict, request(3)), response(3));
  EXPECT_EQ(client.stream(running).data, "");
  EXPECT_EQ(runner_->rows_of_runs(), (std::vector<std::int64_t>{1, 1}));
}

TEST_F(GrpcServerTest, CancelsWhatADisconnectedClientWaitedFor) {
  start();
  runner_->hold();
  Http2Client other(port_);
  {
    Http2Client client(port_);
    client.begin(kPredict, request(1));
    ASSERT_TRUE(client.flush());
    ASSERT_TRUE(runner_->wait_for_runs(1));
    client.begin(kPredict, request(2));
    ASSERT_TRUE(client.flush());
    ASSERT_EQ(lane_->was_waiting_rows(), 1);
  }
  while (lane_->was_waiting_rows() != 0) ASSERT_TRUE(other.flush());
  runner_->release();
  expect_ok(other.call(kPredict, request(3)), response(3));
  EXPECT_EQ(runner_->rows_of_runs().size(), 2u);
}

TEST_F(GrpcServerTest, LoopsShareTheConnections) {
  start({.loops = 3});
  std::vector<std::unique_ptr<Http2Client>> clients;
  for (int i = 0; i < 9; ++i) clients.push_back(std::make_unique<Http2Client>(port_));
  for (int round = 0; round < 20; ++round) {
    std::vector<std::int32_t> calls;
    for (int i = 0; i < 9; ++i) {
      calls.push_back(clients[i]->begin(kPredict, request(100.F * round + i)));
      ASSERT_TRUE(clients[i]->flush());
    }
    for (int i = 0; i < 9; ++i) expect_ok(clients[i]->wait(calls[i]), response(100.F * round + i));
  }
  EXPECT_TRUE(server_->stop(0, kSecondNs));
}

// The processor time of the thread of that name, which only reads a file that is open already.
class ThreadTime {
 public:
  explicit ThreadTime(const std::string& name) {
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
      std::string found;
      std::getline(std::ifstream(task.path() / "comm"), found);
      if (found == name) file_ = Descriptor(::open((task.path() / "schedstat").c_str(), O_RDONLY | O_CLOEXEC));
    }
    EXPECT_TRUE(file_) << "no thread " << name;
  }

  std::int64_t now_ns() const {
    char text[64] = {};
    EXPECT_GT(::pread(file_.fd(), text, sizeof text - 1, 0), 0);
    return std::strtoll(text, nullptr, 10);
  }

 private:
  Descriptor file_;
};

// All descriptors that the process may have, but one.
class DescriptorsTaken {
 public:
  DescriptorsTaken() {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit few = before_;
    few.rlim_cur = std::min<rlim_t>(before_.rlim_cur, 256);
    ::setrlimit(RLIMIT_NOFILE, &few);
    for (int fd = 0; (fd = ::dup(0)) >= 0;) taken_.emplace_back(fd);
    EXPECT_EQ(errno, EMFILE);
    taken_.pop_back();
  }
  DescriptorsTaken(const DescriptorsTaken&) = delete;
  DescriptorsTaken& operator=(const DescriptorsTaken&) = delete;
  ~DescriptorsTaken() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
  std::vector<Descriptor> taken_;
};

TEST_F(GrpcServerTest, GoesOnWithoutDescriptorsAndAcceptsWhenThereAreSome) {
  start();
  Http2Client client(port_);
  expect_ok(client.call(kPredict, request(1)), response(1));
  const ThreadTime loop("headrace-grpc");
  auto taken = std::make_unique<DescriptorsTaken>();
  Http2Client waiting(port_);
  const std::int64_t before_ns = loop.now_ns();
  pollfd greeted{waiting.socket().fd(), POLLIN, 0};
  EXPECT_EQ(::poll(&greeted, 1, 1000), 0) << "it was accepted, or refused";
  EXPECT_LT(loop.now_ns() - before_ns, kSecondNs / 20);
  expect_ok(client.call(kPredict, request(2)), response(2));
  taken = nullptr;
  expect_ok(waiting.call(kPredict, request(3)), response(3));
}

TEST_F(GrpcServerTest, TwoServersCannotShareAPort) {
  start();
  GrpcServer second(router_, {}, handlers_, health_, {});
  const Status status = second.start("127.0.0.1", &port_);
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_EQ(status.message(), "port " + std::to_string(port_) + ": address already in use; choose another with port=");
}

TEST_F(GrpcServerTest, ServesOnAUnixSocketToo) {
  const std::string path = ::testing::TempDir() + "headrace-" + std::to_string(::getpid()) + ".sock";
  start({.loops = 2}, 64, path);
  Http2Client client(port_);
  std::vector<std::unique_ptr<Http2Client>> local;
  for (int i = 0; i < 4; ++i) local.push_back(std::make_unique<Http2Client>(path));
  for (const auto& each : local) expect_ok(each->call(kPredict, request(2)), response(2));
  expect_ok(client.call(kPredict, request(1)), response(1));
  GrpcServer second(router_, {}, handlers_, health_, {});
  int port = 0;
  EXPECT_EQ(second.start("127.0.0.1", &port, path).code(), Code::kFailedPrecondition);
  EXPECT_TRUE(server_->stop(0, kSecondNs));
  EXPECT_TRUE(local[0]->wait_closed());
  EXPECT_NE(::access(path.c_str(), F_OK), 0);
}

// ---- Stopping -------------------------------------------------------------------------------------------------------

TEST_F(GrpcServerTest, RefusesNewCallsAndFinishesThoseUnderWay) {
  start();
  runner_->hold();
  Http2Client client(port_);
  const std::int32_t before = client.begin(kPredict, request(1));
  ASSERT_TRUE(client.flush());
  ASSERT_TRUE(runner_->wait_for_runs(1));
  server_->refuse();
  expect_error(client.call(kPredict, request(2)), Code::kUnavailable, "the server is stopping");
  expect_error(client.call(kUnary, "x"), Code::kUnavailable, "the server is stopping");
  expect_ok(client.call(kHealthCheck, ""), std::string("\x08\x01"));
  runner_->release();
  expect_ok(client.wait(before), response(1));
}

TEST_F(GrpcServerTest, DrainsWhenItStops) {
  start({.loops = 2});
  runner_->hold();
  Http2Client client(port_), idle(port_);
  const std::int32_t before = client.begin(kPredict, request(1));
  ASSERT_TRUE(client.flush());
  ASSERT_TRUE(idle.flush());
  ASSERT_TRUE(runner_->wait_for_runs(1));
  auto stopped = std::async(std::launch::async, [&] { return server_->stop(60 * kSecondNs, 60 * kSecondNs); });
  ASSERT_TRUE(client.pump([&] { return client.goaways() == 1; }));
  ASSERT_TRUE(idle.pump([&] { return idle.goaways() == 1; }));
  EXPECT_EQ(client.goaway_error(), static_cast<std::uint32_t>(NGHTTP2_NO_ERROR));
  runner_->release();
  expect_ok(client.wait(before), response(1));
  EXPECT_TRUE(client.wait_closed());
  EXPECT_TRUE(idle.wait_closed());
  EXPECT_TRUE(stopped.get());
}

TEST_F(GrpcServerTest, AnswersWhatIsLateWhenItStops) {
  start();
  runner_->hold();
  Http2Client client(port_);
  const std::int32_t running = client.begin(kPredict, request(1));
  const std::int32_t incomplete = client.begin(Http2Client::grpc_headers(kPredict), "abc", false);
  const std::int32_t handled = client.begin(kUnary, "never answered");
  const std::int32_t watch = client.begin(kHealthWatch, "");
  ASSERT_TRUE(client.flush());
  ASSERT_TRUE(runner_->wait_for_runs(1));
  auto stopped = std::async(std::launch::async, [&] { return server_->stop(0, 60 * kSecondNs); });
  const std::string late = "the server stopped before there was an answer";
  expect_error(client.wait(running), Code::kUnavailable, late);
  expect_error(client.wait(handled), Code::kUnavailable, late);
  expect_error(client.wait(incomplete), Code::kUnavailable, "the server is stopping");
  expect_ok(client.wait(watch), std::string("\x08\x01"));
  EXPECT_TRUE(client.wait_closed());
  EXPECT_FALSE(stopped.get());
}

TEST_F(GrpcServerTest, StopsThoughAClientDoesNotRead) {
  start();
  Http2Client client(port_, 0);  // no window for responses
  client.begin(kPredict, request(1, 100'000));
  while (runner_->rows_of_runs().empty()) ASSERT_TRUE(client.flush());
  EXPECT_TRUE(server_->stop(60 * kSecondNs, 10'000'000));
  EXPECT_TRUE(client.wait_closed());
}

// Whatever a process that was forked off meanwhile still has of it.
TEST_F(GrpcServerTest, IsGoneOnceItHasStopped) {
  start({.loops = 2});
  Http2Client first(port_), second(port_);
  expect_ok(first.call(kPredict, request(1)), response(1));
  expect_ok(second.call(kPredict, request(1)), response(1));
  const pid_t child = ::fork();
  if (child == 0)
    for (;;) ::pause();
  EXPECT_TRUE(server_->stop(0, kSecondNs));
  EXPECT_TRUE(first.wait_closed());
  EXPECT_TRUE(second.wait_closed());
  EXPECT_EQ(RawClient::try_connect(port_), ECONNREFUSED);
  GrpcServer next(router_, {}, handlers_, health_, {});
  const Status status = next.start("127.0.0.1", &port_);
  EXPECT_TRUE(status.ok()) << status.message();
  Http2Client client(port_);
  expect_ok(client.call(kPredict, request(2)), response(2));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
}

TEST_F(GrpcServerTest, StopsBeforeItWasStarted) {
  GrpcServer never(router_, {}, handlers_, health_, {});
  EXPECT_TRUE(never.stop(0, 0));
  EXPECT_EQ(never.start("127.0.0.1", &port_).code(), Code::kFailedPrecondition);
}

// ---- Other methods --------------------------------------------------------------------------------------------------

// A thread that answers as Python's do.
class Handlers {
 public:
  explicit Handlers(HandlerQueue& queue) : queue_(queue), thread_([this] { serve(); }) {}
  ~Handlers() {
    queue_.close();
    thread_.join();
  }

 private:
  void serve() {
    while (const std::unique_ptr<HandlerCall> call = queue_.next()) {
      if (call->message() == "fail")
        call->answer(NotFound("no such thing"), {});
      else if (call->message() != "forget")
        call->answer({}, call->path() + ":" + std::string(call->message()));
    }
  }

  HandlerQueue& queue_;
  std::thread thread_;
};

TEST_F(GrpcServerTest, HandsOtherMethodsToHandlers) {
  start();
  Handlers handlers(handlers_);
  Http2Client client(port_);
  expect_ok(client.call(kUnary, "a"), kUnary + ":a");
  expect_error(client.call(kUnary, "fail"), Code::kNotFound, "no such thing");
  expect_error(client.call(kUnary, "forget"), Code::kInternal, "gave no answer");
  const std::string large(3 << 20, 'x');
  expect_ok(client.call(kUnary, large), kUnary + ":" + large);
}

TEST_F(GrpcServerTest, AnswersMessageByMessage) {
  start();
  Handlers handlers(handlers_);
  Http2Client client(port_);
  const std::int32_t id = client.begin(Http2Client::grpc_headers(kPerMessage), framed("a"), false);
  const std::string first = framed(kPerMessage + ":a");
  ASSERT_TRUE(client.pump([&] { return client.stream(id).data == first; }));
  client.continue_with(id, framed("b") + framed("c") + framed(std::string(2 << 20, 'd')) + framed(""), true);
  EXPECT_TRUE(client.wait(id).data == first + framed(kPerMessage + ":b") + framed(kPerMessage + ":c") +
                                          framed(kPerMessage + ":" + std::string(2 << 20, 'd')) +
                                          framed(kPerMessage + ":"));
  EXPECT_EQ(client.stream(id).status(), "0");
  const auto& none = client.wait(client.begin(Http2Client::grpc_headers(kPerMessage), "", true));
  EXPECT_EQ(none.status(), "0");
  EXPECT_EQ(none.data, "");
}

TEST_F(GrpcServerTest, EndsAStreamWithTheFirstError) {
  start();
  Handlers handlers(handlers_);
  Http2Client client(port_);
  const std::int32_t id =
      client.begin(Http2Client::grpc_headers(kPerMessage), framed("a") + framed("fail") + framed("b"), false);
  EXPECT_EQ(client.wait(id).status(), "5");
  EXPECT_EQ(client.stream(id).text(), "no such thing");
  EXPECT_EQ(client.stream(id).data, framed(kPerMessage + ":a"));
}

TEST_F(GrpcServerTest, RefusesMoreHandlerCallsThanMayWait) {
  start();
  Http2Client client(port_);
  std::vector<std::int32_t> calls;
  for (int i = 0; i < 17; ++i) calls.push_back(client.begin(kUnary, "a"));
  expect_error(client.wait(calls.back()), Code::kResourceExhausted, "16 control calls are waiting already");
  Handlers handlers(handlers_);
  for (int i = 0; i < 16; ++i) expect_ok(client.wait(calls[i]), kUnary + ":a");
}

TEST_F(GrpcServerTest, AnswersHealthChecksAndPushesChanges) {
  start();
  Http2Client client(port_);
  expect_ok(client.call(kHealthCheck, ""), std::string("\x08\x01"));
  expect_error(client.call(kHealthCheck, bytes_field(1, "nobody")), Code::kNotFound, "nobody");
  expect_error(client.call(kHealthCheck, "\xff"), Code::kInvalidArgument, "");
  const std::int32_t watch = client.begin(kHealthWatch, "");
  ASSERT_TRUE(client.pump([&] { return client.stream(watch).data == framed("\x08\x01"); }));
  health_.set("", Serving::kNotServing);
  ASSERT_TRUE(client.pump([&] { return client.stream(watch).data == framed("\x08\x01") + framed("\x08\x02"); }));
  client.reset(watch);
  ASSERT_TRUE(client.flush());
  health_.set("", Serving::kServing);  // nobody watches any more
  expect_ok(client.call(kHealthCheck, ""), std::string("\x08\x01"));
}

}  // namespace
}  // namespace headrace
