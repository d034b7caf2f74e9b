// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <cstdint>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/timer.h"
#include "fake_clock.h"
#include "fake_request.h"
#include "fake_runner.h"
#include "model.h"

namespace headrace {
namespace {

constexpr std::int64_t kMillisecond = 1'000'000;
constexpr std::int64_t kSecond = 1'000 * kMillisecond;

// Real executors; the time and the timer are the test's.
class ModelTest : public testing::Test {
 protected:
  static LaneOptions options(Policy policy, std::int64_t max_batch_size, std::int64_t batch_timeout_ns = 0) {
    LaneOptions options;
    options.policy = {.policy = policy, .max_batch_size = max_batch_size, .batch_timeout_ns = batch_timeout_ns};
    return options;
  }

  Lane& add_lane(std::string name, const LaneOptions& options, std::shared_ptr<Runner> runner) {
    Signature signature{.name = std::move(name),
                        .inputs = {{.name = "x", .dtype = DType::kFloat, .shape = {}, .tensor_name = ""}},
                        .outputs = {{.name = "y", .dtype = DType::kFloat, .shape = {}, .tensor_name = ""}}};
    return model_->add_lane(std::move(signature), options, std::move(runner), nullptr);
  }

  FakeRequestPtr submit(Lane& lane, std::int64_t rows = 1) {
    FakeRequestPtr request(new FakeRequest(&sink_));
    request->add_floats({rows, 1});
    const Status status = lane.submit(request);
    EXPECT_TRUE(status.ok()) << status.message();
    return request;
  }

  FakeClock clock_;
  std::shared_ptr<Timer> timer_ = std::make_shared<Timer>(clock_);
  FakeSink sink_;
  std::shared_ptr<FakeRunner> runner_ = std::make_shared<FakeRunner>();
  std::shared_ptr<Model> model_ = std::make_shared<Model>("digits", 7, timer_, clock_);
};

TEST_F(ModelTest, FindsItsLanesByTheirSignaturesName) {
  Lane& a = add_lane("a", options(Policy::kAdaptive, 4), runner_);
  Lane& b = add_lane("b", options(Policy::kAdaptive, 4), runner_);
  EXPECT_EQ(model_->lane("a"), &a);
  EXPECT_EQ(model_->lane("b"), &b);
  EXPECT_EQ(model_->lane("c"), nullptr);
  EXPECT_EQ(model_->lane(""), nullptr);
  EXPECT_EQ(model_->name(), "digits");
  EXPECT_EQ(model_->version(), 7);
}

// Clients that wait for their replies, and executors that are known to sleep.
class ModelCallers : public ModelTest {
 protected:
  ~ModelCallers() override { EXPECT_TRUE(model_->close(0)); }

  // Starts executors, lets one run that many rows, which measures them, and waits until all sleep.
  void start_and_measure(Lane& lane, int executors, std::int64_t rows, std::int64_t run_ns) {
    model_->start(executors);
    runner_->hold();
    submit(lane, rows);
    ASSERT_TRUE(runner_->wait_for_runs(1));
    clock_.advance_ns(run_ns);
    runner_->release();
    ASSERT_TRUE(sink_.wait_for(1));
    wait_asleep(executors);
  }

  // What shows that an executor sleeps is that its place can be borrowed.
  void wait_asleep(int executors) {
    const Parking<>& parking = model_->group().parking;
    while (parking.was_parked() < static_cast<std::uint32_t>(executors)) std::this_thread::yield();
  }

  FakeRequestPtr call(Lane& lane, std::int64_t rows = 1, std::int64_t deadline_ns = kNever) {
    FakeRequestPtr request(new FakeRequest(&sink_));
    request->add_floats({rows, 1});
    request->deadline_ns = deadline_ns;
    const Status status = model_->submit_or_run(lane, request);
    EXPECT_TRUE(status.ok()) << status.message();
    return request;
  }

  // Whether the next request is run by the thread that brings it.
  bool runs_in_the_caller(Lane& lane, std::int64_t rows = 1, std::int64_t deadline_ns = kNever) {
    const std::size_t runs = runner_->threads_of_runs().size();
    call(lane, rows, deadline_ns);
    EXPECT_TRUE(sink_.wait_for(runs + 1));
    const bool in_caller = runner_->threads_of_runs().at(runs) == std::this_thread::get_id();
    wait_asleep(1);
    return in_caller;
  }
};

TEST_F(ModelCallers, RunWhereAnExecutorSleepsAndRunsOfThatSizeAreShort) {
  Lane& lane = add_lane("a", options(Policy::kAdaptive, 4), runner_);
  start_and_measure(lane, 1, 1, kMillisecond);
  EXPECT_TRUE(runs_in_the_caller(lane));
  EXPECT_FALSE(runs_in_the_caller(lane, 2));  // not measured yet
  EXPECT_TRUE(runs_in_the_caller(lane, 2));
}

TEST_F(ModelCallers, LeaveARunToTheExecutorThatCouldTake50MsOrLongerThanTheyMayWait) {
  Lane& lane = add_lane("a", options(Policy::kAdaptive, 4), runner_);
  Lane& slow = add_lane("slow", options(Policy::kAdaptive, 4), runner_);
  start_and_measure(lane, 1, 1, 30 * kMillisecond);
  EXPECT_TRUE(runs_in_the_caller(lane, 1, clock_.now_ns() + 40 * kMillisecond));
  EXPECT_FALSE(runs_in_the_caller(lane, 1, clock_.now_ns() + 29 * kMillisecond));
  runner_->hold();
  const std::size_t runs = runner_->threads_of_runs().size();
  submit(slow, 3);
  ASSERT_TRUE(runner_->wait_for_runs(runs + 1));
  clock_.advance_ns(60 * kMillisecond);
  runner_->release();
  ASSERT_TRUE(sink_.wait_for(runs + 1));
  wait_asleep(1);
  EXPECT_FALSE(runs_in_the_caller(slow, 3));
}

TEST_F(ModelCallers, WaitForOthersUnderTheTimeoutPolicy) {
  Lane& lane = add_lane("a", options(Policy::kTimeout, 2, kSecond), runner_);
  start_and_measure(lane, 1, 2, kMillisecond);
  call(lane, 1);
  EXPECT_EQ(runner_->rows_of_runs().size(), 1u);
  call(lane, 1);  // fills the batch
  ASSERT_TRUE(sink_.wait_for(3));
  EXPECT_EQ(runner_->rows_of_runs().back(), 2);
}

TEST_F(ModelCallers, AreNoMoreThanTheExecutorsInWhosePlaceTheyRun) {
  Lane& lane = add_lane("a", options(Policy::kAdaptive, 1), runner_);
  start_and_measure(lane, 2, 1, kMillisecond);
  runner_->hold();
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i)
    callers.emplace_back([&] {
      FakeRequestPtr request(new FakeRequest(&sink_));
      request->add_floats({1, 1});
      EXPECT_TRUE(model_->submit_or_run(lane, request).ok());
    });
  ASSERT_TRUE(runner_->wait_for_runs(3));
  while (lane.was_waiting_rows() != 2) std::this_thread::yield();
  EXPECT_EQ(runner_->rows_of_runs().size(), 3u);
  runner_->release();
  for (std::thread& caller : callers) caller.join();
  ASSERT_TRUE(sink_.wait_for(5));
}

TEST_F(ModelCallers, LeaveNothingBehindThatArrivedMeanwhile) {
  Lane& a = add_lane("a", options(Policy::kAdaptive, 4), runner_);
  Lane& b = add_lane("b", options(Policy::kAdaptive, 4), runner_);
  start_and_measure(a, 1, 1, kMillisecond);
  runner_->hold();
  std::thread caller([&] { call(a); });
  ASSERT_TRUE(runner_->wait_for_runs(2));
  submit(b);  // the only executor's place is borrowed
  runner_->release();
  caller.join();
  EXPECT_TRUE(sink_.wait_for(3));
}

TEST_F(ModelCallers, AreWaitedForWhenTheModelCloses) {
  Lane& lane = add_lane("a", options(Policy::kAdaptive, 4), runner_);
  start_and_measure(lane, 1, 1, kMillisecond);
  runner_->hold();
  std::thread caller([&] { call(lane); });
  ASSERT_TRUE(runner_->wait_for_runs(2));
  std::future<bool> closed = std::async(std::launch::async, [&] { return model_->close(60 * kSecond); });
  while (!model_->group().closing.load()) std::this_thread::yield();
  runner_->release();
  EXPECT_TRUE(closed.get());
  caller.join();
  EXPECT_EQ(sink_.replies(), 2u);
}

TEST_F(ModelTest, GivesTheTurnToTheLaneWithTheOldestEligibleHead) {
  Lane& window = add_lane("window", options(Policy::kTimeout, 4, kSecond), runner_);
  Lane& a = add_lane("a", options(Policy::kAdaptive, 4), runner_);
  Lane& b = add_lane("b", options(Policy::kAdaptive, 4), runner_);
  submit(window);  // the oldest, and not eligible yet
  clock_.advance_ns(1);
  submit(b);
  clock_.advance_ns(1);
  submit(a), submit(b);
  EXPECT_EQ(model_->next_lane(), &b);
  b.run_next();
  EXPECT_EQ(model_->next_lane(), &a);
  submit(b);  // younger than a's
  EXPECT_EQ(model_->next_lane(), &a);
  clock_.advance_ns(kSecond);
  EXPECT_EQ(model_->next_lane(), &window);
  window.run_next();
  EXPECT_EQ(model_->next_lane(), &a);
  a.run_next();
  EXPECT_EQ(model_->next_lane(), &b);
  b.run_next();
  EXPECT_TRUE(model_->close(0));
}

TEST_F(ModelTest, ServesAllItsLanesByItsExecutors) {
  LaneOptions roomy = options(Policy::kAdaptive, 4);
  roomy.max_enqueued_batches = 1'000;
  Lane* const lanes[] = {&add_lane("a", roomy, runner_), &add_lane("b", roomy, runner_)};
  model_->start(2);
  std::vector<FakeRequestPtr> requests;
  for (int i = 0; i < 200; ++i) requests.push_back(submit(*lanes[i % 2], 1 + i % 4));
  EXPECT_TRUE(sink_.wait_for(requests.size()));
  for (const FakeRequestPtr& request : requests) EXPECT_TRUE(request->status.ok());
  EXPECT_TRUE(model_->close(kSecond));
  for (const FakeRequestPtr& request : requests) EXPECT_EQ(request->replies, 1);
}

TEST_F(ModelTest, MakesOneRunOfAHundredConcurrentRowsThatFillABatch) {
  Lane& lane = add_lane("a", options(Policy::kTimeout, 100, kSecond), runner_);
  model_->start(2);
  std::vector<std::thread> threads;
  for (int i = 0; i < 100; ++i) threads.emplace_back([&] { submit(lane); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(sink_.wait_for(100));
  EXPECT_EQ(runner_->rows_of_runs(), std::vector<std::int64_t>{100});
  EXPECT_TRUE(model_->close(kSecond));
}

TEST_F(ModelTest, RunsAWindowWhenTheTimerSaysSoAndNotBefore) {
  Lane& lane = add_lane("a", options(Policy::kTimeout, 16, 100 * kMillisecond), runner_);
  model_->start(2);
  const FakeRequestPtr lone = submit(lane);
  const std::int64_t end_ns = lone->arrival_ns + 100 * kMillisecond;
  clock_.set_ns(end_ns - 1);
  EXPECT_EQ(timer_->fire_due(end_ns - 1), end_ns);
  EXPECT_TRUE(runner_->rows_of_runs().empty());
  clock_.set_ns(end_ns);
  timer_->fire_due(end_ns);
  EXPECT_TRUE(sink_.wait_for(1));
  EXPECT_EQ(runner_->rows_of_runs(), std::vector<std::int64_t>{1});
  EXPECT_TRUE(model_->close(kSecond));
}

TEST_F(ModelTest, AnswersAtItsDeadlineWhatAHungRunHolds) {
  Lane& lane = add_lane("a", options(Policy::kAdaptive, 4), runner_);
  runner_->hold();
  model_->start(1);
  FakeRequestPtr due(new FakeRequest(&sink_));
  due->add_floats({1, 1});
  due->deadline_ns = clock_.now_ns() + kMillisecond;
  ASSERT_TRUE(lane.submit(due).ok());
  ASSERT_TRUE(runner_->wait_for_runs(1));
  clock_.advance_ns(kMillisecond);
  timer_->fire_due(clock_.now_ns());
  EXPECT_EQ(due->replies, 1);
  EXPECT_EQ(due->status.code(), Code::kDeadlineExceeded);
  runner_->release();
  EXPECT_TRUE(model_->close(kSecond));
  EXPECT_EQ(due->replies, 1);
}

// ---- The end --------------------------------------------------------------------------------------------------------

TEST_F(ModelTest, RunsWhatWaitsBeforeItCloses) {
  Lane& lane = add_lane("a", options(Policy::kTimeout, 4, 3'600 * kSecond), runner_);
  runner_->hold();
  model_->start(1);
  std::vector<FakeRequestPtr> requests = {submit(lane, 4)};
  ASSERT_TRUE(runner_->wait_for_runs(1));
  for (int i = 0; i < 5; ++i) requests.push_back(submit(lane));
  std::future<bool> closed = std::async(std::launch::async, [&] { return model_->close(60 * kSecond); });
  runner_->release();
  ASSERT_EQ(closed.wait_for(kEventLimit), std::future_status::ready);
  EXPECT_TRUE(closed.get());
  for (const FakeRequestPtr& request : requests) {
    EXPECT_TRUE(request->status.ok()) << request->status.message();
    EXPECT_EQ(request->replies, 1);
  }
  FakeRequestPtr late(new FakeRequest(&sink_));
  late->add_floats({1, 1});
  EXPECT_EQ(lane.submit(late).code(), Code::kUnavailable);
  EXPECT_EQ(model_->next_lane(), nullptr);
  EXPECT_TRUE(model_->close(0));
}

TEST_F(ModelTest, ClosesAtOnceWhereNothingWaitsHoweverLongItMay) {
  add_lane("a", options(Policy::kTimeout, 4, kSecond), runner_);
  add_lane("b", options(Policy::kAdaptive, 4), runner_);
  model_->start(3);
  EXPECT_TRUE(model_->close(kNever));
}

TEST_F(ModelTest, AnswersEverythingAndLeavesTheExecutorOfAHungRunBehind) {
  const auto gone = std::make_shared<std::promise<void>>();
  std::shared_ptr<Runner> until_gone(runner_.get(), [gone](Runner*) { gone->set_value(); });
  Lane& lane = add_lane("a", options(Policy::kAdaptive, 4), runner_);
  Lane& other = add_lane("b", options(Policy::kTimeout, 4, kSecond), std::move(until_gone));
  runner_->hold();
  model_->start(1);
  std::vector<FakeRequestPtr> requests = {submit(lane, 2)};
  ASSERT_TRUE(runner_->wait_for_runs(1));
  requests.push_back(submit(lane));
  requests.push_back(submit(other));
  EXPECT_FALSE(model_->close(0));
  for (const FakeRequestPtr& request : requests) {
    EXPECT_EQ(request->status.code(), Code::kUnavailable);
    EXPECT_EQ(request->replies, 1);
  }
  EXPECT_FALSE(model_->close(0));  // it still has not returned

  // The executor that was left behind keeps the model, and lets it go when its run returns.
  const std::weak_ptr<Model> left = std::exchange(model_, nullptr);
  EXPECT_FALSE(left.expired());
  timer_ = nullptr;
  runner_->release();
  ASSERT_EQ(gone->get_future().wait_for(kEventLimit), std::future_status::ready);
  EXPECT_TRUE(left.expired());
  for (const FakeRequestPtr& request : requests) EXPECT_EQ(request->replies, 1);
  EXPECT_EQ(runner_->rows_of_runs(), std::vector<std::int64_t>{2});  // nothing ran after
  EXPECT_EQ(sink_.replies(), 3u);
}

TEST_F(ModelTest, WaitsForBatchesThatWereTakenByHand) {
  Lane& lane = add_lane("a", options(Policy::kAdaptive, 4), nullptr);
  EXPECT_FALSE(lane.has_runner());
  const FakeRequestPtr request = submit(lane);
  std::unique_ptr<Batch> batch = lane.next();
  ASSERT_NE(batch, nullptr);
  EXPECT_FALSE(model_->close(0));
  EXPECT_EQ(request->status.code(), Code::kUnavailable);
  lane.finish(std::move(batch), Internal("late"), {});
  EXPECT_EQ(request->replies, 1);
  EXPECT_TRUE(model_->close(0));
}

}  // namespace
}  // namespace headrace
