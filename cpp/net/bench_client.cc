// SPDX-License-Identifier: Apache-2.0

#include "net/bench_client.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <system_error>

#include "net/grpc_codec.h"

namespace headrace {

namespace {

constexpr std::size_t kReceiveBytes = 256 << 10;

// Calls of an open loop under way; more wait, though their time has begun.
constexpr std::size_t kInFlightMax = 65'536;

// A server that ends every connection without an answer is left alone after this many.
constexpr int kBarrenReopeningsMax = 10;

std::string framed(const std::string& message) {
  std::string body(MessagePrefix::kBytes, '\0');
  MessagePrefix{.compressed = false, .length = static_cast<std::uint32_t>(message.size())}.encode(
      reinterpret_cast<std::byte*>(body.data()));
  return body + message;
}

}  // namespace

// --- one thread's connections ----------------------------------------------------------------------------------------

class BenchClient::Worker final : public BenchListener {
 public:
  // `index` of the plan's threads.
  Worker(BenchClient& client, int index) : client_(client), plan_(client.plan_) {
    for (int i = index; i < plan_.connections; i += plan_.threads) {
      const int extra = i < plan_.concurrency % plan_.connections ? 1 : 0;
      slots_.push_back(static_cast<std::size_t>(plan_.concurrency / plan_.connections + extra));
      connections_.push_back(std::make_unique<BenchConnection>(plan_.target, *this));
    }
    next_message_ = static_cast<std::size_t>(index) % client.bodies_.size();
    next_arrival_ = static_cast<std::size_t>(index);
  }

  Status open() {
    for (const auto& connection : connections_) {
      if (Status status = connection->open(kOpenLimitNs); !status.ok()) return status;
    }
    return {};
  }

  void run();
  void on_answered(BenchCall& call) override;

  // From any thread.
  std::uint64_t was_answered() const { return answered_.load(std::memory_order_relaxed); }
  std::uint64_t was_failed() const { return failed_.load(std::memory_order_relaxed); }

  BenchReport& report() { return report_; }

 private:
  bool is_open_loop() const { return !plan_.arrivals_ns.empty(); }
  std::int64_t window_start_ns() const { return client_.start_ns_ + plan_.warm_up_ns; }
  std::int64_t arrival_ns(std::size_t index) const { return client_.start_ns_ + plan_.arrivals_ns[index]; }

  void start_due_calls();
  void start_due_arrivals();
  void start_call(BenchConnection& connection, std::int64_t intended_ns);
  bool take_turn();
  bool has_more_to_send() const;
  std::int64_t give_up_ns() const;
  std::int64_t wake_up_ns() const;
  void wait_for_sockets();
  void keep(BenchConnection& connection, const Status& status);
  void finish();

  BenchClient& client_;
  const BenchPlan& plan_;
  std::vector<std::unique_ptr<BenchConnection>> connections_;
  std::vector<std::size_t> slots_;  // how many calls of a closed loop each connection has under way
  std::vector<pollfd> polled_;
  std::vector<std::byte> buffer_ = std::vector<std::byte>(kReceiveBytes);
  std::size_t next_message_ = 0;
  std::size_t next_arrival_ = 0;
  std::size_t next_connection_ = 0;
  std::size_t in_flight_ = 0;
  int barren_reopenings_ = 0;        // since the last answer
  std::int64_t now_ns_ = 0;          // of this turn of the loop
  std::int64_t last_answer_ns_ = 0;  // or when the first call was sent
  bool is_over_ = false;
  BenchReport report_;
  std::atomic<std::uint64_t> answered_{0};
  std::atomic<std::uint64_t> failed_{0};
};

void BenchClient::Worker::run() {
  ::prctl(PR_SET_TIMERSLACK, 1UL);  // the kernel may otherwise wake an open loop 50 us late
  const SystemClock clock;
  while (!client_.stopping_.load(std::memory_order_relaxed)) {  // stop() wakes by the event, which is the partner
    now_ns_ = clock.now_ns();
    start_due_calls();
    for (const auto& connection : connections_) keep(*connection, connection->send());
    if (in_flight_ == 0 && !has_more_to_send()) break;
    if (now_ns_ >= give_up_ns()) {
      if (now_ns_ - last_answer_ns_ >= plan_.patience_ns) {
        client_.fail(DeadlineExceeded("no answer from " + plan_.target.address() + " for " +
                                      std::to_string(plan_.patience_ns / 1'000'000'000) + " s"));
      }
      break;
    }
    wait_for_sockets();
    for (std::size_t i = 0; i < connections_.size(); ++i) {
      if (polled_[i].revents != 0) keep(*connections_[i], connections_[i]->receive(buffer_));
    }
  }
  finish();
}

void BenchClient::Worker::start_due_calls() {
  if (is_open_loop()) return start_due_arrivals();
  for (std::size_t i = 0; i < connections_.size(); ++i) {
    BenchConnection& connection = *connections_[i];
    while (connection.in_flight() < slots_[i] && connection.is_taking() && take_turn()) {
      start_call(connection, now_ns_);
    }
  }
}

void BenchClient::Worker::start_due_arrivals() {
  const std::size_t in_flight_max = kInFlightMax / static_cast<std::size_t>(plan_.threads);
  while (next_arrival_ < plan_.arrivals_ns.size() && arrival_ns(next_arrival_) <= now_ns_ &&
         in_flight_ < in_flight_max) {
    std::size_t tried = 0;
    while (tried < connections_.size() && !connections_[next_connection_]->is_taking()) {
      next_connection_ = (next_connection_ + 1) % connections_.size();
      ++tried;
    }
    if (tried == connections_.size()) return;
    const std::int64_t intended_ns = arrival_ns(next_arrival_);
    if (intended_ns >= window_start_ns()) report_.lateness.record(now_ns_ - intended_ns);
    start_call(*connections_[next_connection_], intended_ns);
    next_connection_ = (next_connection_ + 1) % connections_.size();
    next_arrival_ += static_cast<std::size_t>(plan_.threads);
  }
}

void BenchClient::Worker::start_call(BenchConnection& connection, std::int64_t intended_ns) {
  if (in_flight_ == 0) last_answer_ns_ = now_ns_;  // the wait for an answer begins
  ++in_flight_;
  connection.start(intended_ns, next_message_, client_.bodies_[next_message_]);
  next_message_ = (next_message_ + static_cast<std::size_t>(plan_.threads)) % client_.bodies_.size();
}

// Whether one more call may be sent now in a closed loop.
bool BenchClient::Worker::take_turn() {
  if (now_ns_ < window_start_ns()) return true;
  if (now_ns_ >= after_ns(window_start_ns(), plan_.duration_ns)) return false;
  if (client_.issued_.load(std::memory_order_relaxed) >= plan_.requests) return false;  // it only grows
  // Each number is given out once, which needs no order.
  return client_.issued_.fetch_add(1, std::memory_order_relaxed) < plan_.requests;
}

bool BenchClient::Worker::has_more_to_send() const {
  if (is_open_loop()) return next_arrival_ < plan_.arrivals_ns.size();
  if (now_ns_ < window_start_ns()) return true;
  // Relaxed: it only grows.
  return now_ns_ < after_ns(window_start_ns(), plan_.duration_ns) &&
         client_.issued_.load(std::memory_order_relaxed) < plan_.requests;
}

// When to wait no longer for answers.
std::int64_t BenchClient::Worker::give_up_ns() const {
  const std::int64_t last_ns = is_open_loop() ? after_ns(client_.start_ns_, plan_.arrivals_ns.back())
                                              : after_ns(window_start_ns(), plan_.duration_ns);
  const std::int64_t silent_ns = in_flight_ == 0 ? kNever : after_ns(last_answer_ns_, plan_.patience_ns);
  return std::min(after_ns(last_ns, plan_.patience_ns), silent_ns);
}

// When to look again, whatever the sockets do.
std::int64_t BenchClient::Worker::wake_up_ns() const {
  std::int64_t wake_ns = give_up_ns();
  if (is_open_loop() && next_arrival_ < plan_.arrivals_ns.size()) {
    // One whose time has come already waits for an answer to another, or for a connection.
    const std::int64_t next_ns = arrival_ns(next_arrival_);
    if (next_ns > now_ns_) wake_ns = std::min(wake_ns, next_ns);
  }
  return wake_ns;
}

void BenchClient::Worker::wait_for_sockets() {
  polled_.clear();
  for (const auto& connection : connections_) {
    const bool wants_to_send = connection->wants_to_send();
    polled_.push_back({.fd = connection->fileno(),
                       .events = static_cast<short>(wants_to_send ? POLLIN | POLLOUT : POLLIN),
                       .revents = 0});
  }
  polled_.push_back({.fd = client_.stop_event_, .events = POLLIN, .revents = 0});
  const std::int64_t wait_ns = std::max<std::int64_t>(0, wake_up_ns() - SystemClock().now_ns());
  constexpr std::int64_t kSecond = 1'000'000'000;
  const timespec timeout{.tv_sec = wait_ns / kSecond, .tv_nsec = wait_ns % kSecond};
  if (::ppoll(polled_.data(), polled_.size(), &timeout, nullptr) < 0) {
    for (pollfd& each : polled_) each.revents = 0;  // a signal
  }
}

// Replaces a connection that is lost, or that takes no more calls and has none.
void BenchClient::Worker::keep(BenchConnection& connection, const Status& status) {
  if (is_over_ || (status.ok() && (connection.is_taking() || connection.in_flight() != 0))) return;
  const bool again = ++barren_reopenings_ <= kBarrenReopeningsMax;
  Status ended = status.ok() ? Unavailable(plan_.target.address() + " takes no calls") : status;
  connection.close(ended);
  if (again) ended = connection.open(kOpenLimitNs);
  if (ended.ok()) return;
  is_over_ = true;
  client_.fail(std::move(ended));
}

void BenchClient::Worker::finish() {
  is_over_ = true;
  for (const auto& connection : connections_) connection->close(Cancelled("the run is over"));
  for (; next_arrival_ < plan_.arrivals_ns.size(); next_arrival_ += static_cast<std::size_t>(plan_.threads)) {
    if (plan_.arrivals_ns[next_arrival_] >= plan_.warm_up_ns) ++report_.unsent;
  }
  client_.on_worker_ended();
}

void BenchClient::Worker::on_answered(BenchCall& call) {
  const std::int64_t now_ns = SystemClock().now_ns();
  const bool measured = call.intended_ns >= window_start_ns();
  --in_flight_;
  if (is_over_) {
    if (measured) ++report_.unanswered;
    return;
  }
  const bool failed = call.code != Code::kOk;
  last_answer_ns_ = now_ns;
  if (call.code != Code::kUnavailable) barren_reopenings_ = 0;
  answered_.fetch_add(1, std::memory_order_relaxed);  // for those who watch
  if (failed) failed_.fetch_add(1, std::memory_order_relaxed);
  if (!measured) {
    ++report_.warm_up;
    return;
  }
  const auto code = static_cast<std::size_t>(call.code);
  ++report_.by_code[code];
  if (failed && report_.texts[code].empty()) report_.texts[code] = call.text;
  report_.last_answer_ns = now_ns - window_start_ns();
  report_.timeline.record(report_.last_answer_ns, now_ns - call.intended_ns, failed);
  if (failed) return;
  report_.latency.record(now_ns - call.intended_ns);
  if (plan_.target.keep_answers && !report_.add_answer(call.message, std::move(call.answer), 1)) {
    ++report_.answers_dropped;
  }
}

// --- the client ------------------------------------------------------------------------------------------------------

BenchClient::BenchClient(BenchPlan plan) : plan_(std::move(plan)), stop_event_(::eventfd(0, EFD_CLOEXEC)) {
  assert(!plan_.messages.empty() && plan_.threads >= 1 && plan_.connections >= plan_.threads);
  if (stop_event_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
  for (std::string& message : plan_.messages) bodies_.push_back(framed(std::exchange(message, {})));
}

BenchClient::~BenchClient() {
  stop();
  for (std::thread& thread : threads_) thread.join();
  ::close(stop_event_);
}

Status BenchClient::start() {
  assert(workers_.empty());
  for (int i = 0; i < plan_.threads; ++i) {
    workers_.push_back(std::make_unique<Worker>(*this, i));
    if (Status status = workers_.back()->open(); !status.ok()) {
      workers_.clear();
      return status;
    }
  }
  start_ns_ = SystemClock().now_ns();
  running_ = plan_.threads;
  for (const auto& worker : workers_) threads_.emplace_back([&worker = *worker] { worker.run(); });
  return {};
}

bool BenchClient::wait_for(std::int64_t limit_ns) {
  std::unique_lock lock(mutex_);
  return ended_.wait_for(lock, std::chrono::nanoseconds(limit_ns), [this] { return running_ == 0; });
}

void BenchClient::stop() {
  stopping_.store(true, std::memory_order_relaxed);  // read after the event below has woken its reader
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(stop_event_, &one, sizeof one);
}

BenchClient::Progress BenchClient::was_progress() const {
  Progress progress;
  for (const auto& worker : workers_) {
    progress.failed += worker->was_failed();
    progress.answered += worker->was_answered();
  }
  progress.elapsed_ns = SystemClock().now_ns() - start_ns_;
  return progress;
}

BenchReport BenchClient::take_report() {
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  BenchReport report;
  for (const auto& worker : workers_) report.merge(worker->report());
  workers_.clear();
  report.status = status_;
  return report;
}

void BenchClient::fail(Status why) {
  {
    const std::lock_guard lock(mutex_);
    if (status_.ok()) status_ = std::move(why);
  }
  stop();
}

void BenchClient::on_worker_ended() {
  const std::lock_guard lock(mutex_);
  --running_;
  ended_.notify_all();
}

}  // namespace headrace
