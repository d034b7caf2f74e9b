// SPDX-License-Identifier: Apache-2.0
//
// The whole core under many threads, with runners written here: lanes, executors, the timer, limits and shutdown.
// Every test ends by counting: each accepted request has exactly one reply, and nothing is left anywhere.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "core/timer.h"
#include "fake_clock.h"
#include "lane.h"
#include "model.h"

namespace headrace {
namespace {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kSlower = 20;  // how much smaller a test is there
#else
constexpr int kSlower = 1;
#endif

constexpr std::int64_t kMillisecond = 1'000'000;
constexpr std::int64_t kSecond = 1'000 * kMillisecond;

// Waits for a count to be reached; the limit only ends a test that would hang.
class Counted {
 public:
  void add(std::size_t amount) {
    std::lock_guard lock(mutex_);
    count_ += amount;
    changed_.notify_all();
  }
  [[nodiscard]] bool wait_for(std::size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(120), [&] { return count_ >= count; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t count_ = 0;
};

// A request whose every row says whose it is: `width` numbers, (id, row, id, row ...).
class NumberedRequest final : public Request {
 public:
  NumberedRequest(ReplySink* sink, std::int64_t id, std::int64_t rows, std::int64_t width)
      : numbers_(static_cast<std::size_t>(rows * width)) {
    for (std::int64_t i = 0; i < rows * width; ++i) numbers_[static_cast<std::size_t>(i)] = i % 2 == 0 ? id : i / width;
    inputs.push_back({.dtype = DType::kInt64,
                      .shape = {rows, width},
                      .data = reinterpret_cast<const std::byte*>(numbers_.data()),
                      .bytes = numbers_.size() * sizeof(std::int64_t)});
    this->sink = sink;
  }

  Status write_reply(std::span<const TensorView> outputs) override {
    writes.fetch_add(1);
    const TensorView& output = outputs[0];
    if (output.shape != inputs[0].shape) return Internal("the reply has another shape");
    for (std::size_t i = 0; i < numbers_.size(); ++i) {
      std::int64_t number;
      std::memcpy(&number, output.data + i * sizeof number, sizeof number);
      if (number != -numbers_[i]) return Internal("the reply has another's rows");
    }
    return {};
  }

  std::atomic<int> writes{0};
  std::atomic<int> replies{0};
  std::atomic<int> replies_after_refusal{0};

 private:
  std::vector<std::int64_t> numbers_;
};

using NumberedPtr = boost::intrusive_ptr<NumberedRequest>;

class CountingSink final : public ReplySink {
 public:
  void deliver(std::span<const RequestPtr> answered) noexcept override {
    for (const RequestPtr& request : answered) static_cast<NumberedRequest&>(*request).replies.fetch_add(1);
    answered_.add(answered.size());
  }
  [[nodiscard]] bool wait_for(std::size_t replies) { return answered_.wait_for(replies); }

 private:
  Counted answered_;
};

// Negates every number: in memory of its own, or in place, as a model may whose output is its input's buffer.
class NegatingRunner final : public Runner {
 public:
  explicit NegatingRunner(std::function<void()> during_run = [] {}) : during_run_(std::move(during_run)) {}

  Status run(const Batch& batch, Outputs* outputs) override {
    runs.fetch_add(1);
    rows_max.store(std::max(rows_max.load(), batch.rows()));
    during_run_();
    TensorView output = batch.inputs()[0];
    const std::size_t count = output.bytes / sizeof(std::int64_t);
    const auto* from = reinterpret_cast<const std::int64_t*>(output.data);
    if (batch.rows() % 2 == 0) {
      auto* to = reinterpret_cast<std::int64_t*>(batch.slab()->data());
      for (std::size_t i = 0; i < count; ++i) to[i] = -from[i];
      outputs->owner = batch.slab();
    } else {
      auto own = std::make_shared<std::vector<std::int64_t>>(from, from + count);
      for (std::int64_t& number : *own) number = -number;
      output.data = reinterpret_cast<const std::byte*>(own->data());
      outputs->owner = own;
    }
    outputs->tensors = {output};
    return {};
  }

  std::atomic<int> runs{0};
  std::atomic<std::int64_t> rows_max{0};

 private:
  std::function<void()> during_run_;
};

// Holds every run until it is opened.
class Gate {
 public:
  void open() { opened_.set_value(); }
  void pass() {
    entered.add(1);
    open_.wait();
  }

  Counted entered;

 private:
  std::promise<void> opened_;
  std::shared_future<void> open_ = opened_.get_future().share();
};

Signature numbers_signature(const char* name) {
  const Shape shape = {-1, -1};
  return {.name = name,
          .inputs = {{.name = "x", .dtype = DType::kInt64, .shape = shape, .tensor_name = ""}},
          .outputs = {{.name = "y", .dtype = DType::kInt64, .shape = shape, .tensor_name = ""}}};
}

LaneOptions lane_options(Policy policy, std::int64_t max_batch_size, std::int64_t batch_timeout_ns = 0) {
  LaneOptions options;
  options.policy = {.policy = policy, .max_batch_size = max_batch_size, .batch_timeout_ns = batch_timeout_ns};
  options.max_enqueued_batches = 1'000;
  return options;
}

// Everything that was accepted is counted under exactly one way of being answered, and nothing waits.
void expect_all_answered(const Lane& lane) {
  const Stats& stats = lane.stats();
  EXPECT_EQ(stats.requests.value(), stats.ok.value() + stats.failed.value() + stats.expired.value() +
                                        stats.cancelled.value() + stats.closed.value());
  EXPECT_EQ(lane.was_waiting_rows(), 0);
}

// A model with real time and a timer thread.
class StressLane : public testing::Test {
 protected:
  StressLane() { timer_->start(); }

  Lane& add_lane(const char* name, const LaneOptions& options, std::shared_ptr<Runner> runner) {
    return model_->add_lane(numbers_signature(name), options, std::move(runner), nullptr);
  }

  static inline const SystemClock clock_;  // outlives executors that are left behind
  std::shared_ptr<Timer> timer_ = std::make_shared<Timer>(clock_);
  std::shared_ptr<Model> model_ = std::make_shared<Model>("numbers", 1, timer_, clock_);
};

TEST_F(StressLane, GivesEveryOneOfManyThreadsItsOwnRows) {
  constexpr int kThreads = 32, kRequests = 10'000 / kSlower, kInFlight = 8;
  auto runner = std::make_shared<NegatingRunner>();
  Lane* const lanes[] = {&add_lane("adaptive", lane_options(Policy::kAdaptive, 64), runner),
                         &add_lane("timeout", lane_options(Policy::kTimeout, 32, kMillisecond), runner)};
  model_->start(3);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::minstd_rand random(static_cast<unsigned>(t + 1));
      CountingSink sink;
      std::vector<NumberedPtr> in_flight;
      std::size_t accepted = 0;
      for (int i = 0; i < kRequests; ++i) {
        const std::int64_t rows = random() % 8 == 0 ? 1 + random() % 32 : 1 + random() % 3;
        const std::int64_t width = random() % 4 == 0 ? 3 : 2;  // two buckets
        NumberedPtr request(new NumberedRequest(&sink, t * kRequests + i, rows, width));
        if (!lanes[random() % 2]->submit(request).ok()) {
          wrong.fetch_add(1);
          continue;
        }
        ++accepted;
        in_flight.push_back(std::move(request));
        if (in_flight.size() < kInFlight && i + 1 < kRequests) continue;
        if (!sink.wait_for(accepted)) wrong.fetch_add(1);
        for (const NumberedPtr& answered : in_flight)
          if (answered->replies != 1 || answered->writes != 1 || !answered->status.ok()) wrong.fetch_add(1);
        in_flight.clear();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);
  EXPECT_LE(runner->rows_max.load(), 64);
  EXPECT_TRUE(model_->close(60 * kSecond));
  for (const Lane* lane : lanes) expect_all_answered(*lane);
  EXPECT_EQ(lanes[0]->stats().ok.value() + lanes[1]->stats().ok.value(), std::int64_t{kThreads} * kRequests);
}

// Executors, the timer and cancellers meet at one compare-exchange.
TEST_F(StressLane, AnswersOnceWhileDeadlinesAndCancelsRaceTheExecutors) {
  constexpr int kThreads = 8, kRequests = 20'000 / kSlower, kInFlight = 16;
  std::atomic<std::uint64_t> spins{0};
  auto runner = std::make_shared<NegatingRunner>([&] {
    const std::int64_t until_ns = clock_.now_ns() + 100'000;
    while (clock_.now_ns() < until_ns) spins.fetch_add(1);
  });
  LaneOptions options = lane_options(Policy::kTimeout, 16, 300'000);
  options.waiting_bytes_max = std::size_t{1} << 20;
  Lane& lane = add_lane("racing", options, runner);
  model_->start(2);
  std::atomic<int> wrong{0};
  std::atomic<std::int64_t> accepted_in_all{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::minstd_rand random(static_cast<unsigned>(t + 1));
      CountingSink sink;
      std::vector<NumberedPtr> in_flight;
      std::size_t accepted = 0;
      for (int i = 0; i < kRequests; ++i) {
        NumberedPtr request(new NumberedRequest(&sink, t * kRequests + i, 1 + random() % 4, 2));
        if (random() % 2 == 0) request->deadline_ns = clock_.now_ns() + random() % 1'000'000;
        if (lane.submit(request).ok()) {
          ++accepted;
          in_flight.push_back(request);
        } else if (request->replies != 0) {
          wrong.fetch_add(1);
        }
        if (!in_flight.empty() && random() % 3 == 0) lane.cancel(in_flight[random() % in_flight.size()]);
        if (in_flight.size() < kInFlight && i + 1 < kRequests) continue;
        if (!sink.wait_for(accepted)) wrong.fetch_add(1);
        for (const NumberedPtr& answered : in_flight) {
          const Code code = answered->status.code();
          if (answered->replies != 1 || answered->writes > 1) wrong.fetch_add(1);
          if (code != Code::kOk && code != Code::kDeadlineExceeded && code != Code::kCancelled) wrong.fetch_add(1);
        }
        in_flight.clear();
      }
      accepted_in_all.fetch_add(static_cast<std::int64_t>(accepted));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong.load(), 0);

  // Nothing is left of the bytes either: a request of nearly all of them is accepted.
  CountingSink sink;
  NumberedPtr large(new NumberedRequest(&sink, 0, 16, (1 << 20) / 16 / 8));
  EXPECT_TRUE(lane.submit(large).ok());
  EXPECT_TRUE(sink.wait_for(1));
  EXPECT_TRUE(large->status.ok()) << large->status.message();

  EXPECT_TRUE(model_->close(60 * kSecond));
  expect_all_answered(lane);
  EXPECT_EQ(lane.stats().requests.value(), accepted_in_all.load() + 1);
  EXPECT_GT(lane.stats().ok.value(), 0);
  EXPECT_GT(lane.stats().expired.value(), 0);
  EXPECT_GT(lane.stats().cancelled.value(), 0);
}

TEST_F(StressLane, RefusesAtOnceWhatAFullQueueCannotTakeAndGoesOn) {
  constexpr int kThreads = 16, kRequestsEach = 50;
  Gate gate;
  LaneOptions options = lane_options(Policy::kAdaptive, 4);
  options.max_enqueued_batches = 10;
  Lane& lane = add_lane("full", options, std::make_shared<NegatingRunner>([&] { gate.pass(); }));
  model_->start(1);
  CountingSink sink;
  NumberedPtr first(new NumberedRequest(&sink, 0, 1, 2));
  ASSERT_TRUE(lane.submit(first).ok());
  ASSERT_TRUE(gate.entered.wait_for(1));  // the only executor is busy, and the queue is empty

  std::atomic<std::size_t> accepted{0};
  std::mutex refused_mutex;
  std::vector<NumberedPtr> refused;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kRequestsEach; ++i) {
        NumberedPtr request(new NumberedRequest(&sink, i, 1, 2));
        const Status status = lane.submit(request);
        if (status.ok()) {
          accepted.fetch_add(1);
          continue;
        }
        EXPECT_EQ(status.code(), Code::kUnavailable);
        std::lock_guard lock(refused_mutex);
        refused.push_back(std::move(request));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(accepted.load(), 40u);  // max_enqueued_batches x max_batch_size
  gate.open();
  EXPECT_TRUE(sink.wait_for(1 + accepted.load()));
  for (const NumberedPtr& request : refused) EXPECT_EQ(request->replies, 0);
  EXPECT_EQ(lane.stats().rejected.value(), static_cast<std::int64_t>(refused.size()));

  NumberedPtr again(new NumberedRequest(&sink, 0, 4, 2));
  EXPECT_TRUE(lane.submit(again).ok());
  EXPECT_TRUE(sink.wait_for(2 + accepted.load()));
  EXPECT_TRUE(model_->close(60 * kSecond));
  expect_all_answered(lane);
}

TEST_F(StressLane, MakesOneRunOfAHundredConcurrentRowsThatFillABatch) {
  auto runner = std::make_shared<NegatingRunner>();
  Lane& lane = add_lane("window", lane_options(Policy::kTimeout, 100, 3'600 * kSecond), runner);
  model_->start(2);
  CountingSink sink;
  std::vector<NumberedPtr> requests(100);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    threads.emplace_back([&, i] {
      requests[i] = new NumberedRequest(&sink, static_cast<std::int64_t>(i), 1, 2);
      EXPECT_TRUE(lane.submit(requests[i]).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(sink.wait_for(100));
  EXPECT_EQ(runner->runs.load(), 1);
  for (const NumberedPtr& request : requests) EXPECT_TRUE(request->status.ok());
  EXPECT_TRUE(model_->close(60 * kSecond));
  expect_all_answered(lane);
}

// ---- Shutdown -------------------------------------------------------------------------------------------------------

// Requests in every stage at once; with time to drain, all of them get their answer.
TEST_F(StressLane, AnswersWhatItAcceptedWhenItClosesUnderLoad) {
  constexpr int kRounds = 60 / (kSlower == 1 ? 1 : 6), kThreads = 6;
  for (int round = 0; round < kRounds; ++round) {
    model_ = std::make_shared<Model>("numbers", round, timer_, clock_);
    auto runner = std::make_shared<NegatingRunner>();
    Lane* const lanes[] = {&add_lane("adaptive", lane_options(Policy::kAdaptive, 8), runner),
                           &add_lane("window", lane_options(Policy::kTimeout, 8, 3'600 * kSecond), runner)};
    model_->start(2);
    std::atomic<int> wrong{0};
    std::atomic<bool> refused{false};
    Counted submitted;
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        std::minstd_rand random(static_cast<unsigned>(round * kThreads + t + 1));
        CountingSink sink;
        std::vector<NumberedPtr> accepted;
        for (int i = 0;; ++i) {
          NumberedPtr request(new NumberedRequest(&sink, i, 1 + random() % 3, 2));
          const Status status = lanes[random() % 2]->submit(request);
          if (status.ok()) {
            accepted.push_back(std::move(request));
          } else if (status.message() == "the model is being closed") {
            break;
          }
          submitted.add(1);
          if (i % 64 == 63) std::this_thread::yield();
        }
        if (!sink.wait_for(accepted.size())) wrong.fetch_add(1);
        for (const NumberedPtr& request : accepted)
          if (request->replies != 1 || !request->status.ok()) wrong.fetch_add(1);
      });
    }
    EXPECT_TRUE(submitted.wait_for(static_cast<std::size_t>(20 + round * 10)));
    EXPECT_TRUE(model_->close(60 * kSecond));
    for (std::thread& thread : threads) thread.join();
    ASSERT_EQ(wrong.load(), 0) << "round " << round;
    for (const Lane* lane : lanes) expect_all_answered(*lane);
  }
}

// No time to drain, and a run that does not return: what waits and what runs is answered all the same, the executor
// is left behind, and it ends by itself when its run returns.
TEST_F(StressLane, AnswersEverythingUnavailableWhenARunDoesNotReturn) {
  Gate gate;
  std::promise<void> model_gone;
  std::shared_ptr<void> until_gone(nullptr, [&](void*) { model_gone.set_value(); });
  Lane& lane = add_lane("stuck", lane_options(Policy::kTimeout, 4, kSecond / 2),
                        std::make_shared<NegatingRunner>([&gate, until_gone] { gate.pass(); }));
  model_->start(1);
  CountingSink sink;
  std::vector<NumberedPtr> requests;
  const auto submit = [&](std::int64_t rows, std::int64_t width) {
    requests.emplace_back(new NumberedRequest(&sink, static_cast<std::int64_t>(requests.size()), rows, width));
    EXPECT_TRUE(lane.submit(requests.back()).ok());
  };
  submit(4, 2);
  ASSERT_TRUE(gate.entered.wait_for(1));     // running
  submit(1, 2), submit(1, 3), submit(4, 2);  // waiting, in two buckets
  lane.oldest_eligible_arrival_ns();         // they leave the mailbox
  submit(2, 2);                              // and one is in it
  EXPECT_FALSE(model_->close(0));
  EXPECT_TRUE(sink.wait_for(requests.size()));
  for (const NumberedPtr& request : requests) {
    EXPECT_EQ(request->replies, 1);
    EXPECT_EQ(request->status.code(), Code::kUnavailable);
  }
  expect_all_answered(lane);
  EXPECT_EQ(lane.submit(RequestPtr(new NumberedRequest(&sink, 0, 1, 2))).code(), Code::kUnavailable);
  model_ = nullptr;
  until_gone = nullptr;
  gate.open();
  EXPECT_EQ(model_gone.get_future().wait_for(std::chrono::seconds(60)), std::future_status::ready);
  for (const NumberedPtr& request : requests) EXPECT_EQ(request->replies, 1);
}

// A request of no rows takes no room in a batch, but it is one that waits.
TEST_F(StressLane, AnswersARequestWithoutRowsWhenItCloses) {
  auto runner = std::make_shared<NegatingRunner>();
  Signature signature = numbers_signature("untyped");
  signature.outputs[0].dtype = DType::kInvalid;  // only the run knows the type
  Lane& lane = model_->add_lane(signature, lane_options(Policy::kTimeout, 4, 3'600 * kSecond), runner, nullptr);
  CountingSink sink;
  NumberedPtr empty(new NumberedRequest(&sink, 0, 0, 2));
  ASSERT_TRUE(lane.submit(empty).ok());
  model_->close(0);  // no executor was started
  EXPECT_EQ(empty->replies, 1);
  expect_all_answered(lane);
}

// ---- With a clock of the test's, and no threads ---------------------------------------------------------------------

// Plays one executor by hand.
class LaneByHand : public testing::Test {
 protected:
  void make_lane(const LaneOptions& options) {
    lane_ = std::make_unique<Lane>(group_, numbers_signature("numbers"), options, nullptr, nullptr);
  }

  NumberedPtr submit(std::int64_t rows = 1, std::int64_t deadline_ns = kNever, std::int64_t width = 2) {
    NumberedPtr request(new NumberedRequest(&sink_, next_id_++, rows, width));
    request->deadline_ns = deadline_ns;
    EXPECT_TRUE(lane_->submit(request).ok());
    return request;
  }

  // Forms a batch if one is eligible, as a free executor would.
  std::unique_ptr<Batch> next() { return lane_->oldest_eligible_arrival_ns() == kNever ? nullptr : lane_->next(); }

  void finish(std::unique_ptr<Batch> batch) {
    Outputs outputs;
    const Status status = runner_.run(*batch, &outputs);
    lane_->finish(std::move(batch), status, std::move(outputs));
  }

  FakeClock clock_;
  Timer timer_{clock_};
  LaneGroup group_{"numbers", clock_, timer_};
  CountingSink sink_;
  NegatingRunner runner_;
  std::unique_ptr<Lane> lane_;
  std::int64_t next_id_ = 0;
};

// What Ray Serve gets wrong: batches that are fixed while the executor is busy come out at the size of one window.
TEST_F(LaneByHand, FillsBatchesWhileTheExecutorIsBusy) {
  make_lane(lane_options(Policy::kTimeout, 32, 10 * kMillisecond));
  std::vector<std::int64_t> sizes;
  std::unique_ptr<Batch> running;
  std::int64_t busy_until_ns = 0;
  for (int millisecond = 0; millisecond < 3'000; ++millisecond, clock_.advance_ns(kMillisecond)) {
    if (millisecond % 5 == 0) submit();
    timer_.fire_due(clock_.now_ns());
    if (running != nullptr && clock_.now_ns() >= busy_until_ns) finish(std::move(running));
    if (running != nullptr) continue;
    running = next();
    if (running == nullptr) continue;
    sizes.push_back(running->rows());
    busy_until_ns = clock_.now_ns() + 100 * kMillisecond;
  }
  if (running != nullptr) finish(std::move(running));
  ASSERT_GT(sizes.size(), 20u);
  for (std::size_t i = 1; i < sizes.size(); ++i) {
    EXPECT_GE(sizes[i], 16) << "batch " << i;
    EXPECT_LE(sizes[i], 24) << "batch " << i;
  }
}

TEST_F(LaneByHand, RunsALoneRequestAtTheEndOfItsWindowAndNotOneTickBefore) {
  make_lane(lane_options(Policy::kTimeout, 16, 100 * kMillisecond));
  submit();
  clock_.advance_ns(100 * kMillisecond - 1);
  EXPECT_EQ(timer_.fire_due(clock_.now_ns()), clock_.now_ns() + 1);
  EXPECT_EQ(next(), nullptr);
  clock_.advance_ns(1);
  timer_.fire_due(clock_.now_ns());
  std::unique_ptr<Batch> batch = next();
  ASSERT_NE(batch, nullptr);
  EXPECT_EQ(batch->rows(), 1);
  finish(std::move(batch));
  EXPECT_EQ(next(), nullptr);
}

// The timer looks while a full batch is eligible; whoever takes that batch leaves rows behind, whose window nobody has
// set yet.
TEST_F(LaneByHand, ServesTheWindowOfRowsThatAFullBatchLeftBehind) {
  make_lane(lane_options(Policy::kTimeout, 4, 100 * kMillisecond));
  const std::int64_t start_ns = clock_.now_ns();
  const NumberedPtr hurried = submit(1, start_ns + 10 * kMillisecond);
  for (int i = 0; i < 5; ++i) submit();
  clock_.advance_ns(10 * kMillisecond);
  timer_.fire_due(clock_.now_ns());
  EXPECT_EQ(hurried->status.code(), Code::kDeadlineExceeded);
  std::unique_ptr<Batch> batch = next();
  ASSERT_NE(batch, nullptr);
  EXPECT_EQ(batch->rows(), 4);
  EXPECT_EQ(next(), nullptr);  // another executor looks before it sleeps
  EXPECT_EQ(timer_.fire_due(clock_.now_ns()), start_ns + 100 * kMillisecond);
  finish(std::move(batch));
  clock_.set_ns(start_ns + 100 * kMillisecond);
  ASSERT_NE(batch = next(), nullptr);
  finish(std::move(batch));
}

// The same where the full batch was one of another bucket.
TEST_F(LaneByHand, ServesTheWindowOfABucketWhileAnotherIsFull) {
  make_lane(lane_options(Policy::kTimeout, 4, 100 * kMillisecond));
  const std::int64_t start_ns = clock_.now_ns();
  const NumberedPtr hurried = submit(1, start_ns + 10 * kMillisecond);
  for (int i = 0; i < 4; ++i) submit();
  submit(1, kNever, 3);
  clock_.advance_ns(10 * kMillisecond);
  timer_.fire_due(clock_.now_ns());
  std::unique_ptr<Batch> batch = next();
  ASSERT_NE(batch, nullptr);
  EXPECT_EQ(batch->rows(), 4);
  EXPECT_EQ(next(), nullptr);
  EXPECT_EQ(timer_.fire_due(clock_.now_ns()), start_ns + 100 * kMillisecond);
  finish(std::move(batch));
  clock_.set_ns(start_ns + 100 * kMillisecond);
  ASSERT_NE(batch = next(), nullptr);
  finish(std::move(batch));
}

// Cancelled requests count for a full batch until they are unlinked; then the others still have their window.
TEST_F(LaneByHand, ServesTheWindowAfterCancelsEmptiedAFullBatch) {
  make_lane(lane_options(Policy::kTimeout, 4, 100 * kMillisecond));
  const std::int64_t start_ns = clock_.now_ns();
  submit();
  const NumberedPtr cancelled[] = {submit(), submit(), submit()};
  EXPECT_NE(lane_->oldest_eligible_arrival_ns(), kNever);
  for (const NumberedPtr& request : cancelled) EXPECT_TRUE(lane_->cancel(request));
  EXPECT_EQ(next(), nullptr);
  clock_.advance_ns(50 * kMillisecond);
  EXPECT_EQ(timer_.fire_due(clock_.now_ns()), start_ns + 100 * kMillisecond);
  clock_.set_ns(start_ns + 100 * kMillisecond);
  std::unique_ptr<Batch> batch = next();
  ASSERT_NE(batch, nullptr);
  EXPECT_EQ(batch->rows(), 1);
  finish(std::move(batch));
}

class LaneAfterOutlier : public LaneByHand,
                         public testing::WithParamInterface<std::pair<std::int64_t, std::int64_t>> {};

// One run of 5 s, then pairs of requests with deadlines of 200 ms and runs of 1 ms: whatever the pace and the size of
// the batches, a second later nothing is dropped any more.
TEST_P(LaneAfterOutlier, DropsNothingASecondLater) {
  const auto [max_batch_size, pace_ms] = GetParam();
  make_lane(lane_options(Policy::kAdaptive, max_batch_size));
  const auto run_pair = [&](std::int64_t run_ns, std::int64_t wait_ns) {
    const NumberedPtr pair[] = {submit(1, after_ns(clock_.now_ns(), wait_ns)),
                                submit(1, after_ns(clock_.now_ns(), wait_ns))};
    while (std::unique_ptr<Batch> batch = next()) {
      clock_.advance_ns(run_ns);
      finish(std::move(batch));
    }
    timer_.fire_due(clock_.now_ns());
    return static_cast<int>(pair[0]->status.ok()) + static_cast<int>(pair[1]->status.ok());
  };
  for (int i = 0; i < 10; ++i) EXPECT_EQ(run_pair(kMillisecond, 200 * kMillisecond), 2);
  run_pair(5 * kSecond, kNever);
  const std::int64_t outlier_end_ns = clock_.now_ns();
  while (clock_.now_ns() < outlier_end_ns + 20 * kSecond) {
    clock_.advance_ns(pace_ms * kMillisecond);
    const std::int64_t after_ms = (clock_.now_ns() - outlier_end_ns) / kMillisecond;
    const int answered = run_pair(kMillisecond, 200 * kMillisecond);
    if (after_ms > 1'000) {
      ASSERT_EQ(answered, 2) << after_ms << " ms after the outlier";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(SizesAndPaces, LaneAfterOutlier,
                         testing::Values(std::pair(1, 10), std::pair(1, 100), std::pair(1, 900), std::pair(1, 3'000),
                                         std::pair(2, 900), std::pair(8, 10), std::pair(8, 900)));

}  // namespace
}  // namespace headrace
