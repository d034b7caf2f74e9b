// SPDX-License-Identifier: Apache-2.0
//
// A whole server whose hostile clients cancel, vanish, stall, flood and send garbage, while honest ones beside them get
// every reply; and its stop in the middle of all that, after which nothing is left anywhere.
//
// The choices of a run follow from its seed, which is printed; HEADRACE_SEED=N makes them again.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <nghttp2/nghttp2.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>
#include <mutex>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "grpc_server_fixture.h"
#include "http2_client.h"
#include "http2_frames.h"
#include "net/descriptor.h"

namespace headrace {
namespace {

using namespace std::string_literals;

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kSlower = 8;  // how much smaller a test is there
#else
constexpr int kSlower = 1;
#endif

constexpr int kHostileThreads = 6, kHonestThreads = 3;
constexpr std::size_t kHostileActions = 3'600 / kSlower, kHonestReplies = 12'000 / kSlower;
constexpr std::size_t kRepliesPerAction = kHonestReplies * kHostileThreads / kHostileActions;
constexpr std::size_t kKeptOpen = 24;  // connections that a hostile client holds on to

std::ptrdiff_t count_threads() {
  const std::filesystem::directory_iterator threads("/proc/self/task");
  return std::distance(begin(threads), end(threads));
}

unsigned choose_seed() {
  const char* given = std::getenv("HEADRACE_SEED");
  return given != nullptr ? static_cast<unsigned>(std::strtoul(given, nullptr, 10)) : std::random_device()();
}

// Counts, and lets one wait.
class Counted {
 public:
  void add() {
    std::lock_guard lock(mutex_);
    ++count_;
    changed_.notify_all();
  }
  // From now on nobody waits.
  void end() {
    std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
  }
  [[nodiscard]] bool wait_for(std::size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, 4 * kEventLimit, [&] { return count_ >= count || ended_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t count_ = 0;
  bool ended_ = false;
};

// One client that means no good.  It never blocks: what the server does not take, it does not send.
class HostileClient {
 public:
  HostileClient(int port, unsigned seed) : port_(port), random_(seed) {}

  void act() {
    static constexpr std::array kActs = {
        &HostileClient::cancel,
        &HostileClient::vanish_in_a_message,
        &HostileClient::vanish_in_a_frame,
        &HostileClient::send_garbage,
        &HostileClient::send_http1,
        &HostileClient::never_read,
        &HostileClient::stall,
        &HostileClient::flood,
        &HostileClient::send_huge_headers,
        &HostileClient::lie_of_size,
        &HostileClient::lie_of_encoding,
        &HostileClient::watch_and_vanish,
        &HostileClient::half_close,
        &HostileClient::let_go,
        &HostileClient::say_goodbye,
    };
    (this->*kActs[below(kActs.size())])();
  }

 private:
  std::size_t below(std::size_t limit) { return random_() % limit; }
  bool maybe() { return below(2) == 0; }

  // Invalid where the server does not listen any more.
  Descriptor connect(int receive_bytes = 0) {
    Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (receive_bytes != 0) ::setsockopt(socket.fd(), SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof receive_bytes);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port_));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(socket.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return {};
    ::fcntl(socket.fd(), F_SETFL, O_NONBLOCK);
    return socket;
  }
  Descriptor connect_http2() {
    Descriptor socket = connect();
    send(socket, std::string(kHttp2Preface) + http2_frame(NGHTTP2_SETTINGS, 0, 0, ""));
    return socket;
  }

  bool send(const Descriptor& socket, std::string_view bytes) {
    while (socket && !bytes.empty()) {
      const std::size_t part = maybe() ? bytes.size() : 1 + below(bytes.size());
      const ssize_t sent = ::send(socket.fd(), bytes.data(), part, MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return static_cast<bool>(socket);
  }

  // Half of the time by a reset, in the middle of whatever there is.
  void vanish(Descriptor socket) {
    const linger at_once{1, 0};
    if (socket && maybe()) ::setsockopt(socket.fd(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  }
  void keep(Descriptor socket) {
    if (!socket) return;
    if (kept_.size() < kKeptOpen) return kept_.push_back(std::move(socket));
    std::swap(kept_[below(kKeptOpen)], socket);
    vanish(std::move(socket));
  }
  void keep_or_vanish(Descriptor socket) { maybe() ? keep(std::move(socket)) : vanish(std::move(socket)); }

  static std::string head(std::uint32_t stream, std::string_view path, std::string_view more = "", bool ends = false) {
    const std::uint8_t flags = NGHTTP2_FLAG_END_HEADERS | (ends ? NGHTTP2_FLAG_END_STREAM : 0);
    return http2_frame(NGHTTP2_HEADERS, flags, stream, hpack_call(path) + std::string(more));
  }
  static std::string data(std::uint32_t stream, std::string_view bytes, bool ends = true) {
    return http2_frame(NGHTTP2_DATA, ends ? NGHTTP2_FLAG_END_STREAM : 0, stream, bytes);
  }
  static std::string reset(std::uint32_t stream) {
    return http2_frame(NGHTTP2_RST_STREAM, 0, stream, big_endian(NGHTTP2_CANCEL, 4));
  }
  // A PredictRequest that fits into a frame.
  std::string predict(std::size_t numbers_max = 3'000) {
    const std::size_t numbers = 1 + below(numbers_max);
    return framed(bytes_field(1, bytes_field(1, "digits")) +
                  input("x", tensor_proto(DType::kFloat, {1, static_cast<std::int64_t>(numbers)},
                                          bytes_field(5, std::string(numbers * sizeof(float), 'h')))));
  }
  const std::string& path() {
    static const std::array<std::string, 4> paths = {kPredict, kPredict, kUnary, kPerMessage};
    return paths[below(paths.size())];
  }
  std::string noise(std::size_t bytes_max) {
    std::string bytes(1 + below(bytes_max), '\0');
    for (char& c : bytes) c = static_cast<char>(random_());
    return bytes;
  }

  void cancel() {
    Descriptor socket = connect_http2();
    std::string bytes;
    for (std::uint32_t stream = 1; stream < 32; stream += 2) {
      bytes += head(stream, path()) + data(stream, predict(100), maybe());
      if (maybe()) bytes += reset(1 + 2 * static_cast<std::uint32_t>(below(stream / 2 + 1)));
    }
    send(socket, bytes);
    keep_or_vanish(std::move(socket));
  }
  void vanish_in_a_message() {
    Descriptor socket = connect_http2();
    const std::string message = predict();
    send(socket, head(1, path()) + data(1, std::string_view(message).substr(0, below(message.size())), false));
    vanish(std::move(socket));
  }
  void vanish_in_a_frame() {
    Descriptor socket = connect();
    const std::string bytes = std::string(kHttp2Preface) + http2_frame(NGHTTP2_SETTINGS, 0, 0, "") + head(1, path()) +
                              data(1, predict()) + head(3, path()) + data(3, predict());
    send(socket, std::string_view(bytes).substr(0, below(bytes.size())));
    keep_or_vanish(std::move(socket));
  }
  void send_garbage() {
    Descriptor socket = maybe() ? connect() : connect_http2();
    send(socket, noise(20'000));
    keep_or_vanish(std::move(socket));
  }
  void send_http1() {
    Descriptor socket = connect();
    send(socket, "POST /v1/models/digits:predict HTTP/1.1\r\nHost: here\r\nContent-Length: 100\r\n\r\n{}");
    keep_or_vanish(std::move(socket));
  }
  void never_read() {
    Descriptor socket = connect(4'096);
    const std::string window = http2_frame(NGHTTP2_SETTINGS, 0, 0, big_endian(4, 2) + big_endian(0x7FFFFFFF, 4));
    std::string bytes =
        std::string(kHttp2Preface) + window + http2_frame(NGHTTP2_WINDOW_UPDATE, 0, 0, big_endian(0x7FFF0000, 4));
    for (std::uint32_t stream = 1; stream < 80; stream += 2) bytes += head(stream, path()) + data(stream, predict());
    send(socket, bytes);
    keep_or_vanish(std::move(socket));
  }
  void stall() {
    Descriptor socket = connect_http2();
    std::string bytes;
    for (std::uint32_t stream = 1; stream < 200; stream += 2) {
      bytes += head(stream, path());
      if (maybe()) bytes += data(stream, big_endian(0, 1) + big_endian(1 << 20, 4) + noise(50), false);
    }
    send(socket, bytes);
    keep_or_vanish(std::move(socket));
  }
  void flood() {
    Descriptor socket = connect_http2();
    std::uint32_t stream = 1;
    const std::size_t kind = below(7);
    std::string bytes;
    if (kind == 5) bytes = http2_frame(NGHTTP2_HEADERS, 0, stream, "");
    if (kind == 6) bytes = head(stream, kPredict);
    for (int i = 0; i < 2'000; ++i) {
      switch (kind) {
        case 0:
          bytes += http2_frame(NGHTTP2_PING, 0, 0, "hostile!");
          break;
        case 1:
          bytes += http2_frame(NGHTTP2_SETTINGS, 0, 0, big_endian(4, 2) + big_endian(static_cast<std::uint32_t>(i), 4));
          break;
        case 2:
          bytes += head(stream, path()) + reset(stream);
          stream += 2;
          break;
        case 3:
          bytes += http2_frame(NGHTTP2_WINDOW_UPDATE, 0, 0, big_endian(1, 4));
          break;
        case 4:
          bytes += http2_frame(NGHTTP2_PRIORITY, 0, 2 * static_cast<std::uint32_t>(i) + 1, big_endian(0, 4) + "\x10"s);
          break;
        case 5:
          bytes += http2_frame(NGHTTP2_CONTINUATION, 0, stream, maybe() ? "" : hpack_header("x", "y"));
          break;
        default:
          bytes += data(stream, "", false);
          break;
      }
    }
    send(socket, bytes);
    keep_or_vanish(std::move(socket));
  }
  void send_huge_headers() {
    Descriptor socket = connect_http2();
    std::string more;
    for (std::size_t i = 0, count = below(8); i < count; ++i) more += hpack_header("x", std::string(8'000, 'x'));
    const std::string block = hpack_call(kPredict) + more;
    std::string bytes = http2_frame(NGHTTP2_HEADERS, NGHTTP2_FLAG_END_STREAM, 1, block.substr(0, 16'384));
    for (std::size_t at = 16'384; at < block.size(); at += 16'384)
      bytes += http2_frame(NGHTTP2_CONTINUATION, 0, 1, block.substr(at, 16'384));
    send(socket, bytes + http2_frame(NGHTTP2_CONTINUATION, NGHTTP2_FLAG_END_HEADERS, 1, ""));
    keep_or_vanish(std::move(socket));
  }
  void lie_of_size() {
    Descriptor socket = connect_http2();
    for (std::uint32_t stream = 1; stream < 16; stream += 2) {
      std::string prefix = big_endian(static_cast<std::uint32_t>(below(3)), 1);
      prefix += big_endian(maybe() ? 0xFFFFFFFF : static_cast<std::uint32_t>(below(1 << 24)), 4);
      send(socket, head(stream, path()) + data(stream, prefix.substr(0, 1 + below(5)) + noise(100), maybe()));
    }
    keep_or_vanish(std::move(socket));
  }
  void lie_of_encoding() {
    Descriptor socket = connect_http2();
    const std::string encoding = hpack_header("grpc-encoding", maybe() ? "gzip" : maybe() ? "deflate" : "snappy");
    send(socket, head(1, path(), encoding) + data(1, framed(noise(5'000), true)));
    send(socket, head(3, path()) + data(3, framed(noise(5'000), true)));
    send(socket, head(5, path(), hpack_header("grpc-timeout", noise(8))) + data(5, predict()));
    keep_or_vanish(std::move(socket));
  }
  void watch_and_vanish() {
    Descriptor socket = connect_http2();
    for (std::uint32_t stream = 1; stream < 8; stream += 2)
      send(socket, head(stream, kHealthWatch) + data(stream, framed("")));
    keep_or_vanish(std::move(socket));
  }
  void half_close() {
    Descriptor socket = connect_http2();
    send(socket, head(1, path()) + data(1, predict()));
    if (socket) ::shutdown(socket.fd(), SHUT_WR);
    keep_or_vanish(std::move(socket));
  }
  void say_goodbye() {
    Descriptor socket = connect_http2();
    send(socket,
         head(1, kPerMessage) + data(1, predict(), false) + http2_frame(NGHTTP2_GOAWAY, 0, 0, noise(8) + "12345678"));
    send(socket, data(1, predict(), false) + head(3, path()) + data(3, predict()));
    keep_or_vanish(std::move(socket));
  }
  // Goes on with a connection that was kept, or leaves it.
  void let_go() {
    if (kept_.empty()) return;
    const std::size_t which = below(kept_.size());
    std::swap(kept_[which], kept_.back());
    if (maybe()) {
      send(kept_.back(), noise(200));
      char bytes[4'096];
      while (::recv(kept_.back().fd(), bytes, sizeof bytes, 0) > 0) continue;
    }
    vanish(std::move(kept_.back()));
    kept_.pop_back();
  }

  const int port_;
  std::minstd_rand random_;
  std::vector<Descriptor> kept_;
};

class StressGrpcServer : public GrpcServerTest, public testing::WithParamInterface<int> {
 protected:
  ~StressGrpcServer() override {
    handlers_.close();
    if (handler_.joinable()) handler_.join();
  }

  // Handlers give back what they get.
  void start_handler() {
    handler_ = std::thread([this] {
      while (const std::unique_ptr<HandlerCall> call = handlers_.next()) call->answer({}, call->message());
    });
  }

  // Calls, some at a time, until the server says that it goes; every reply is its request's.
  void be_honest(unsigned seed, Counted& replies) {
    std::minstd_rand random(seed);
    Http2Client client(port_);
    float first = static_cast<float>(seed % 1'000);
    while (client.goaways() == 0 && !HasFailure()) {
      struct Sent {
        std::int32_t stream;
        float first;
        std::int64_t numbers;
      };
      std::vector<Sent> sent;
      for (std::size_t i = 0, count = 1 + random() % 8; i < count; ++i, ++first) {
        const std::int64_t numbers = random() % 8 == 0 ? 1 + random() % 20'000 : 1 + random() % 50;
        sent.push_back({client.begin(kPredict, request(first, numbers)), first, numbers});
      }
      for (const Sent& call : sent) {
        if (!client.pump([&] { return client.stream(call.stream).closed; })) {
          EXPECT_TRUE(stopping_) << "no answer";
          return;
        }
        const Http2Client::Stream& stream = client.stream(call.stream);
        if (stopping_ && stream.status() != "0") continue;  // refused, as it came too late
        expect_ok(stream, response(call.first, call.numbers));
        client.stream(call.stream) = {};
        replies.add();
      }
    }
  }

  std::atomic<bool> stopping_{false};

 private:
  std::thread handler_;
};

TEST_P(StressGrpcServer, AnswersTheHonestExactlyBesideTheHostileAndLeavesNothingWhenItStopsAmongThem) {
  const unsigned seed = choose_seed();
  std::cout << "HEADRACE_SEED=" << seed << std::endl;
  const std::ptrdiff_t threads_before = count_threads();
  GrpcServerOptions options;
  options.loops = GetParam();
  options.message_bytes_max = 16 << 20;
  start(options);
  start_handler();

  Counted actions, replies;
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kHostileThreads; ++t)
    threads.emplace_back([&, t] {
      HostileClient client(port_, seed + t);
      for (std::size_t i = 0; !over; ++i, actions.add()) {
        client.act();
        // Both sides go on together; the stop then meets all that the hostile can do.
        EXPECT_TRUE(replies.wait_for(std::min(i * kRepliesPerAction, kHonestReplies)));
      }
    });
  for (unsigned t = 0; t < kHonestThreads; ++t) threads.emplace_back([&, t] { be_honest(seed + 100 + t, replies); });

  EXPECT_TRUE(replies.wait_for(kHonestReplies));
  EXPECT_TRUE(actions.wait_for(kHostileActions));
  EXPECT_GT(server_->connections(), 0u);
  stopping_ = true;
  replies.end();
  EXPECT_TRUE(server_->stop(30 * kSecondNs, kSecondNs / 5)) << "something was not answered";
  over = true;
  for (std::thread& thread : threads) thread.join();

  handlers_.close();
  EXPECT_TRUE(model_->close(60 * kSecondNs));
  EXPECT_EQ(server_->connections(), 0u);
  EXPECT_EQ(server_->buffered_bytes(), 0u);
  EXPECT_EQ(lane_->was_waiting_rows(), 0);
  EXPECT_EQ(model_->group().waiting_bytes.load(), 0u);
  const Stats& stats = lane_->stats();
  EXPECT_EQ(stats.requests.value(), stats.ok.value() + stats.failed.value() + stats.expired.value() +
                                        stats.cancelled.value() + stats.closed.value());
  EXPECT_GT(stats.cancelled.value(), 0);
  EXPECT_LE(count_threads(), threads_before + 1) << "more than the handlers' thread is left";
}

INSTANTIATE_TEST_SUITE_P(Loops, StressGrpcServer, testing::Values(1, 3),
                         [](const auto& loops) { return std::to_string(loops.param) + "loops"; });

}  // namespace
}  // namespace headrace
