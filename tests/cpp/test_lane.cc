// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <cstddef>
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
#include "lane.h"

// Memory that is out is a null pointer for a sanitizer too.
extern "C" __attribute__((visibility("default"))) const char* __asan_default_options() {
  return "allocator_may_return_null=1";
}
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_options() {
  return "allocator_may_return_null=1";
}

namespace headrace {
namespace {

constexpr std::int64_t kMicrosecond = 1'000;
constexpr std::int64_t kMillisecond = 1'000'000;
constexpr std::int64_t kSecond = 1'000 * kMillisecond;

LaneOptions adaptive(std::int64_t max_batch_size) {
  LaneOptions options;
  options.policy = {.policy = Policy::kAdaptive, .max_batch_size = max_batch_size};
  return options;
}

LaneOptions timeout(std::int64_t max_batch_size, std::int64_t batch_timeout_ns) {
  LaneOptions options;
  options.policy = {.policy = Policy::kTimeout, .max_batch_size = max_batch_size, .batch_timeout_ns = batch_timeout_ns};
  return options;
}

// One lane, with the executor, the timer and the time in the test's hand.
class LaneTest : public testing::Test {
 protected:
  void make_lane(const LaneOptions& options, Signature signature = any_signature()) {
    lane_ = std::make_unique<Lane>(group_, std::move(signature), options, runner_, nullptr);
  }

  static Signature any_signature() {
    return {.name = "any",
            .inputs = {{.name = "x", .dtype = DType::kFloat, .shape = {}, .tensor_name = ""}},
            .outputs = {{.name = "y", .dtype = DType::kFloat, .shape = {}, .tensor_name = ""}}};
  }

  FakeRequestPtr floats(Shape shape, float first = 0) {
    FakeRequestPtr request(new FakeRequest(&sink_));
    request->add_floats(std::move(shape), first);
    return request;
  }

  FakeRequestPtr submit(FakeRequestPtr request) {
    const Status status = lane_->submit(request);
    EXPECT_TRUE(status.ok()) << status.message();
    return request;
  }

  FakeRequestPtr submit_rows(std::int64_t rows, float first = 0) { return submit(floats({rows, 1}, first)); }

  FakeRequestPtr submit_due(std::int64_t deadline_ns) {
    FakeRequestPtr request = floats({1, 1});
    request->deadline_ns = deadline_ns;
    return submit(std::move(request));
  }

  std::int64_t now() const { return clock_.now_ns(); }

  // What the timer's thread does at that time.
  void fire_at(std::int64_t now_ns) {
    clock_.set_ns(now_ns);
    EXPECT_GT(timer_.fire_due(now_ns), now_ns);
  }

  // Finishes a batch as an identity does.
  void finish(std::unique_ptr<Batch> batch) {
    ASSERT_NE(batch, nullptr);
    Outputs outputs;
    const Status status = runner_->run(*batch, &outputs);
    lane_->finish(std::move(batch), status, std::move(outputs));
  }

  std::int64_t next_rows() {
    std::unique_ptr<Batch> batch = lane_->next();
    if (batch == nullptr) return -1;
    const std::int64_t rows = batch->rows();
    finish(std::move(batch));
    return rows;
  }

  // Every accepted request has one reply, and nothing waits.
  void expect_all_answered() const {
    const Stats& stats = lane_->stats();
    EXPECT_EQ(stats.requests.value(), stats.ok.value() + stats.failed.value() + stats.expired.value() +
                                          stats.cancelled.value() + stats.closed.value());
    EXPECT_EQ(static_cast<std::int64_t>(sink_.replies()), stats.requests.value());
    EXPECT_EQ(lane_->was_waiting_rows(), 0);
    EXPECT_EQ(group_.waiting_bytes.load(), 0u);
  }

  FakeClock clock_;
  Timer timer_{clock_};
  LaneGroup group_{"model", clock_, timer_};
  FakeSink sink_;
  std::shared_ptr<FakeRunner> runner_ = std::make_shared<FakeRunner>();
  std::unique_ptr<Lane> lane_;
};

// ---- The path -------------------------------------------------------------------------------------------------------

TEST_F(LaneTest, RunsWhatWaitsTogetherAndGivesEachItsRows) {
  make_lane(adaptive(8));
  const FakeRequestPtr a = submit_rows(1, 10), b = submit_rows(3, 20), c = submit_rows(2, 30);
  EXPECT_EQ(lane_->was_waiting_rows(), 6);
  lane_->run_next();
  EXPECT_EQ(runner_->rows_of_runs(), std::vector<std::int64_t>{6});
  EXPECT_EQ(a->reply_floats(), (std::vector<float>{10}));
  EXPECT_EQ(b->reply_floats(), (std::vector<float>{20, 21, 22}));
  EXPECT_EQ(c->reply_floats(), (std::vector<float>{30, 31}));
  EXPECT_EQ(sink_.call_sizes(), std::vector<std::size_t>{3});
  EXPECT_EQ(lane_->stats().ok.value(), 3);
  EXPECT_EQ(lane_->stats().batches_by_rows[6].value(), 1);
  expect_all_answered();
}

TEST_F(LaneTest, RunsNothingWhereNothingWaits) {
  make_lane(adaptive(8));
  lane_->run_next();
  EXPECT_EQ(lane_->next(), nullptr);
  EXPECT_TRUE(runner_->rows_of_runs().empty());
  EXPECT_EQ(lane_->oldest_eligible_arrival_ns(), kNever);
}

TEST_F(LaneTest, CountsTheTimesOfABatch) {
  make_lane(adaptive(8));
  submit_rows(1);
  clock_.advance_ns(10);
  submit_rows(1);
  clock_.advance_ns(20);
  std::unique_ptr<Batch> batch = lane_->next();
  clock_.advance_ns(500);
  finish(std::move(batch));
  EXPECT_EQ(lane_->stats().wait_ns.value(), 30 + 20);
  EXPECT_EQ(lane_->stats().run_ns.value(), 500);
  EXPECT_EQ(lane_->stats().batch_requests.value(), 2);
}

TEST_F(LaneTest, GivesTheErrorOfARunToItsRequestsAndGoesOn) {
  make_lane(adaptive(8));
  const FakeRequestPtr a = submit_rows(1), b = submit_rows(1);
  runner_->fail_with(InvalidArgument("the model's words"));
  lane_->run_next();
  EXPECT_EQ(a->status.message(), "the model's words");
  EXPECT_EQ(b->status.code(), Code::kInvalidArgument);
  runner_->fail_with({});
  const FakeRequestPtr c = submit_rows(1);
  lane_->run_next();
  EXPECT_TRUE(c->status.ok());
  EXPECT_EQ(lane_->stats().failed.value(), 2);
  EXPECT_EQ(lane_->stats().ok.value(), 1);
  expect_all_answered();
}

TEST_F(LaneTest, LearnsNothingFromARunThatFailed) {
  make_lane(adaptive(8));
  submit_rows(1);
  runner_->fail_with(Internal("slow, and wrong"));
  std::unique_ptr<Batch> batch = lane_->next();
  clock_.advance_ns(5 * kSecond);
  finish(std::move(batch));
  runner_->fail_with({});
  submit_due(now() + 1), submit_due(now() + 1);
  EXPECT_EQ(next_rows(), 2);
}

TEST_F(LaneTest, AnswersABatchThatFindsNoMemory) {
  make_lane(adaptive(8));
  FakeRequestPtr huge = floats({1, 1});
  huge->inputs[0].shape = {1, std::int64_t{1} << 58};
  submit(huge);
  lane_->run_next();
  EXPECT_EQ(huge->status.code(), Code::kResourceExhausted);
  EXPECT_TRUE(runner_->rows_of_runs().empty());
  expect_all_answered();
  const FakeRequestPtr next = submit_rows(1);
  lane_->run_next();
  EXPECT_TRUE(next->status.ok());
}

TEST_F(LaneTest, HoldsUpNobodyForAnOddShape) {
  make_lane(timeout(2, kSecond));
  const FakeRequestPtr odd = submit(floats({1, 9}));
  submit_rows(1), submit_rows(1);
  EXPECT_EQ(next_rows(), 2);
  EXPECT_EQ(odd->replies, 0);
  fire_at(odd->arrival_ns + kSecond);
  EXPECT_EQ(next_rows(), 1);
  expect_all_answered();
}

TEST_F(LaneTest, KeepsNoReferenceToWhatItAnswered) {
  make_lane(timeout(2, kSecond));
  int destroyed = 0;
  const auto counted = [&] {
    FakeRequestPtr request = floats({1, 1});
    request->on_destroyed = [&] { ++destroyed; };
    return request;
  };
  submit(counted());
  FakeRequestPtr cancelled = submit(counted());
  EXPECT_TRUE(lane_->cancel(cancelled));
  cancelled = nullptr;
  fire_at(now() + 10 * kMillisecond);  // this soon, when no executor does it before
  EXPECT_EQ(destroyed, 1);
  submit(counted());
  lane_->run_next();
  EXPECT_EQ(destroyed, 3);
  submit(counted());
  lane_->oldest_eligible_arrival_ns();  // out of the mailbox
  submit(counted());                    // in it
  lane_ = nullptr;
  EXPECT_EQ(destroyed, 5);
}

TEST_F(LaneTest, PrintsALineForEachBatchWhereItIsAsked) {
  LaneOptions options = timeout(8, 2 * kMillisecond);
  options.log_batches = true;
  make_lane(options);
  submit_rows(3), submit_rows(1);
  clock_.advance_ns(2 * kMillisecond);
  std::unique_ptr<Batch> batch = lane_->next();
  clock_.advance_ns(5 * kMillisecond);
  testing::internal::CaptureStderr();
  finish(std::move(batch));
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "batch model/any rows=4 requests=2 wait_us=2000 run_us=5000 reason=window\n");
}

// ---- What is refused ------------------------------------------------------------------------------------------------

TEST_F(LaneTest, RefusesMoreRowsThanABatchMayHave) {
  make_lane(adaptive(3));
  const FakeRequestPtr four = floats({4, 1});
  const Status status = lane_->submit(four);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_EQ(status.message(), "Task size 4 is larger than maximum input batch size 3");
  submit_rows(3);
  EXPECT_EQ(next_rows(), 3);
  EXPECT_EQ(four->replies, 0);
  EXPECT_EQ(lane_->stats().invalid.value(), 1);
  expect_all_answered();
}

TEST_F(LaneTest, RefusesInputsOfUnequalRows) {
  make_lane(adaptive(8));
  FakeRequestPtr request = floats({2, 1});
  request->add_floats({3, 1});
  const Status status = lane_->submit(request);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_EQ(status.message(), "Batching Run() input tensors must have equal 0th-dimension size: got 2 and 3");
  FakeRequestPtr empty = floats({0, 1});
  empty->add_floats({3, 1});
  EXPECT_EQ(lane_->submit(empty).code(), Code::kInvalidArgument);
}

TEST_F(LaneTest, RefusesAnEmptyShapeWhoseBatchWouldHaveNoSize) {
  constexpr std::int64_t kHuge = std::int64_t{1} << 60;  // eight of these are one too many for 64 bits
  make_lane(adaptive(8));
  const Status status = lane_->submit(floats({1, kHuge, 0}));
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_EQ(status.message(), "shape [1,1152921504606846976,0] is too large for a batch of 8 rows");
  for (int i = 0; i < 8; ++i) submit(floats({1, kHuge / 2, 0}));
  EXPECT_EQ(next_rows(), 8);
  expect_all_answered();
}

TEST_F(LaneTest, RefusesMoreEmptyRowsThanCanBeCounted) {
  LaneOptions options = adaptive(8);
  options.batched = false;
  make_lane(options);
  const Status status = lane_->submit(floats({std::int64_t{1} << 62, 0}));
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_EQ(status.message(), "the request has 4611686018427387904 rows; a batch may have 2147483647");
}

TEST_F(LaneTest, RefusesADeadlineThatHasPassed) {
  make_lane(adaptive(8));
  FakeRequestPtr request = floats({1, 1});
  request->deadline_ns = now();
  EXPECT_EQ(lane_->submit(request).code(), Code::kDeadlineExceeded);
  EXPECT_EQ(request->replies, 0);
  submit_due(now() + 1);
}

TEST_F(LaneTest, RefusesWhatDoesNotFitIntoASlab) {
  LaneOptions options = adaptive(64);
  options.slab_bytes_max = 256;
  make_lane(options);
  EXPECT_EQ(lane_->submit(floats({1, 65})).code(), Code::kInvalidArgument);
  submit(floats({1, 64}));
  submit(floats({1, 64}));
  EXPECT_EQ(next_rows(), 1);  // and no batch is larger
  EXPECT_EQ(next_rows(), 1);
}

TEST_F(LaneTest, RefusesAtOnceWhatAFullQueueCannotTake) {
  LaneOptions options = adaptive(4);
  options.max_enqueued_batches = 2;
  make_lane(options);
  std::vector<FakeRequestPtr> waiting;
  for (int i = 0; i < 7; ++i) waiting.push_back(submit_rows(1));
  const FakeRequestPtr refused = floats({2, 1});
  const Status status = lane_->submit(refused);
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_EQ(status.message(),
            "The batch scheduling queue to which this task was submitted is full; currently 2 batches enqueued and "
            "max_enqueued_batches is 2");
  EXPECT_EQ(refused->replies, 0);
  EXPECT_EQ(lane_->stats().rejected.value(), 1);
  submit_rows(1);  // the last place
  EXPECT_EQ(lane_->submit(floats({1, 1})).code(), Code::kUnavailable);
  EXPECT_EQ(next_rows(), 4);
  submit_rows(4);
  EXPECT_EQ(lane_->submit(floats({1, 1})).code(), Code::kUnavailable);
  EXPECT_EQ(next_rows(), 4);
  EXPECT_EQ(next_rows(), 4);
  EXPECT_EQ(refused->replies, 0);
  expect_all_answered();
}

TEST_F(LaneTest, FreesTheRoomOfARunAsSoonAsItsBatchIsFormed) {
  LaneOptions options = adaptive(2);
  options.max_enqueued_batches = 1;
  make_lane(options);
  submit_rows(2);
  std::unique_ptr<Batch> running = lane_->next();
  submit_rows(2);
  EXPECT_EQ(lane_->submit(floats({1, 1})).code(), Code::kUnavailable);
  finish(std::move(running));
}

TEST_F(LaneTest, FreesTheRoomOfWhatIsCancelledOrExpires) {
  LaneOptions options = timeout(2, kSecond);
  options.max_enqueued_batches = 1;
  make_lane(options);
  const FakeRequestPtr cancelled = submit_rows(1);
  submit_due(now() + kMillisecond);
  EXPECT_EQ(lane_->submit(floats({1, 1})).code(), Code::kUnavailable);
  EXPECT_TRUE(lane_->cancel(cancelled));
  submit_rows(1);
  EXPECT_EQ(lane_->submit(floats({1, 1})).code(), Code::kUnavailable);
  fire_at(now() + kMillisecond);
  submit_rows(1);
  EXPECT_EQ(next_rows(), 2);
  expect_all_answered();
}

TEST_F(LaneTest, LimitsTheBytesThatWaitInAllLanesOfTheModel) {
  LaneOptions options = adaptive(64);
  options.waiting_bytes_max = 1'000;
  make_lane(options);
  Lane other(group_, any_signature(), options, runner_, nullptr);
  submit(floats({1, 200}));
  ASSERT_TRUE(other.submit(floats({1, 40})).ok());
  const Status status = lane_->submit(floats({1, 11}));
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_EQ(status.message(),
            "the requests that wait for model model hold 960 bytes, and the limit is 1000 (waiting_bytes_max)");
  submit(floats({1, 10}));
  other.run_next();
  submit(floats({1, 40}));
  while (next_rows() > 0) {
  }
  EXPECT_EQ(sink_.replies(), 4u);
  EXPECT_EQ(group_.waiting_bytes.load(), 0u);
}

TEST_F(LaneTest, CountsWhatTheFrontEndSaysThatARequestKeeps) {
  LaneOptions options = adaptive(64);
  options.waiting_bytes_max = 1'000;
  make_lane(options);
  FakeRequestPtr large = floats({1, 1});
  large->bytes = 900;
  submit(large);
  EXPECT_EQ(group_.waiting_bytes.load(), 900u);
  FakeRequestPtr other = floats({1, 1});
  other->bytes = 101;
  EXPECT_EQ(lane_->submit(other).code(), Code::kUnavailable);
  EXPECT_EQ(next_rows(), 1);
  EXPECT_EQ(group_.waiting_bytes.load(), 0u);
}

TEST_F(LaneTest, CountsWhatItsStringsKeepTowardsTheBytesThatWait) {
  LaneOptions options = adaptive(64);
  options.waiting_bytes_max = 200;
  make_lane(options);
  const auto strings = [&](std::size_t length) {
    FakeRequestPtr request(new FakeRequest(&sink_));
    request->add_strings({1}, {std::string(length, 'x')});
    return request;
  };
  submit(strings(180));
  EXPECT_EQ(lane_->submit(strings(5)).code(), Code::kUnavailable);
  EXPECT_EQ(next_rows(), 1);
  submit(strings(5));
  EXPECT_EQ(next_rows(), 1);
  expect_all_answered();
}

// ---- Zero rows, scalars, no inputs, lanes that are not batched ------------------------------------------------------

TEST_F(LaneTest, AnswersZeroRowsWithoutARun) {
  Signature signature = any_signature();
  signature.outputs = {{.name = "a", .dtype = DType::kFloat, .shape = Shape{-1, 10}, .tensor_name = ""},
                       {.name = "b", .dtype = DType::kString, .shape = Shape{-1, -1, 2}, .tensor_name = ""},
                       {.name = "c", .dtype = DType::kInt64, .shape = {}, .tensor_name = ""},
                       {.name = "d", .dtype = DType::kInt32, .shape = Shape{}, .tensor_name = ""}};
  make_lane(timeout(8, kSecond), signature);
  const FakeRequestPtr empty = submit_rows(0);
  EXPECT_EQ(empty->replies, 1);  // before submit() returned
  EXPECT_TRUE(empty->status.ok());
  ASSERT_EQ(empty->reply.size(), 4u);
  EXPECT_EQ(empty->reply[0].shape, (Shape{0, 10}));
  EXPECT_EQ(empty->reply[0].dtype, DType::kFloat);
  EXPECT_EQ(empty->reply[1].shape, (Shape{0, 0, 2}));
  EXPECT_EQ(empty->reply[1].dtype, DType::kString);
  EXPECT_EQ(empty->reply[2].shape, (Shape{0}));
  EXPECT_EQ(empty->reply[3].shape, (Shape{0}));
  EXPECT_EQ(lane_->stats().batches.value(), 0);
  EXPECT_EQ(lane_->next(), nullptr);
  expect_all_answered();
}

TEST_F(LaneTest, RunsZeroRowsWhereOnlyARunKnowsTheOutputs) {
  Signature signature = any_signature();
  signature.outputs[0].dtype = DType::kInvalid;
  LaneOptions options = timeout(4, kSecond);
  options.max_enqueued_batches = 1;
  make_lane(options, signature);
  submit_rows(1);
  const FakeRequestPtr empty = submit_rows(0);
  EXPECT_EQ(empty->replies, 0);
  EXPECT_EQ(next_rows(), 0);  // alone, and at once
  EXPECT_TRUE(empty->status.ok());
  EXPECT_EQ(empty->reply_floats(), std::vector<float>{});
  // They take places in the queue.
  for (int i = 0; i < 3; ++i) submit_rows(0);
  EXPECT_EQ(lane_->submit(floats({0, 1})).code(), Code::kUnavailable);
  while (next_rows() >= 0) {
  }
  fire_at(now() + kSecond);
  EXPECT_EQ(next_rows(), 1);
  expect_all_answered();
}

TEST_F(LaneTest, RunsAScalarInputAloneAndAtOnce) {
  make_lane(timeout(8, kSecond));
  FakeRequestPtr with_scalar = floats({2, 1});
  with_scalar->add_floats({}, 0.5f);
  FakeRequestPtr scalar_first = floats({}, 1);
  scalar_first->add_floats({20, 1});
  submit(with_scalar), submit(scalar_first), submit_rows(1);
  std::unique_ptr<Batch> batch = lane_->next();
  ASSERT_NE(batch, nullptr);
  EXPECT_EQ(batch->slots().size(), 1u);
  EXPECT_EQ(batch->reason(), BatchReason::kAlone);
  EXPECT_EQ(batch->inputs()[1].shape, Shape{});
  finish(std::move(batch));
  EXPECT_EQ(next_rows(), 1);
  EXPECT_EQ(lane_->next(), nullptr);
  EXPECT_EQ(with_scalar->reply.at(0).shape, (Shape{2, 1}));
  EXPECT_EQ(scalar_first->reply.at(1).shape, (Shape{20, 1}));
}

TEST_F(LaneTest, RunsARequestWithoutInputsAlone) {
  make_lane(adaptive(8));
  for (int i = 0; i < 2; ++i) submit(FakeRequestPtr(new FakeRequest(&sink_)));
  lane_->run_next();
  EXPECT_EQ(sink_.replies(), 1u);
  lane_->run_next();
  expect_all_answered();
}

TEST_F(LaneTest, RunsEveryRequestAloneWhereTheLaneIsNotBatched) {
  LaneOptions options = timeout(4, kSecond);
  options.batched = false;
  options.max_enqueued_batches = 1;
  make_lane(options);
  submit_rows(100), submit_rows(1), submit_rows(0);
  FakeRequestPtr unequal = floats({2, 1});
  unequal->add_floats({3, 1});
  submit(unequal);
  EXPECT_EQ(lane_->submit(floats({1, 1})).code(), Code::kUnavailable);  // four requests are the queue's four rows
  std::vector<std::int64_t> rows;
  for (std::int64_t ran = next_rows(); ran >= 0; ran = next_rows()) rows.push_back(ran);
  EXPECT_EQ(rows, (std::vector<std::int64_t>{100, 1, 0, 2}));
  EXPECT_EQ(lane_->stats().batches_by_reason[static_cast<std::size_t>(BatchReason::kAlone)].value(), 4);
  expect_all_answered();
}

// ---- Cancelling -----------------------------------------------------------------------------------------------------

TEST_F(LaneTest, CancelsWhatWaitsAndNeverRunsIt) {
  make_lane(adaptive(8));
  const FakeRequestPtr a = submit_rows(1), b = submit_rows(1);
  EXPECT_TRUE(lane_->cancel(a));
  EXPECT_EQ(a->status.code(), Code::kCancelled);
  EXPECT_EQ(a->replies, 1);
  EXPECT_FALSE(lane_->cancel(a));
  EXPECT_EQ(next_rows(), 1);
  EXPECT_FALSE(lane_->cancel(b));
  EXPECT_TRUE(b->status.ok());
  EXPECT_EQ(a->replies, 1);
  EXPECT_EQ(lane_->stats().cancelled.value(), 1);
  expect_all_answered();
}

TEST_F(LaneTest, CancelsWhatRunsAndDropsItsResult) {
  make_lane(adaptive(8));
  const FakeRequestPtr a = submit_rows(1), b = submit_rows(1);
  std::unique_ptr<Batch> batch = lane_->next();
  EXPECT_TRUE(lane_->cancel(a));
  EXPECT_EQ(a->replies, 1);
  finish(std::move(batch));
  EXPECT_EQ(a->replies, 1);
  EXPECT_EQ(a->writes, 0);
  EXPECT_EQ(a->status.code(), Code::kCancelled);
  EXPECT_TRUE(b->status.ok());
  expect_all_answered();
}

TEST_F(LaneTest, CountsNoCancelledRowTowardsAFullBatch) {
  make_lane(timeout(4, kSecond));
  const FakeRequestPtr a = submit_rows(2), b = submit_rows(2);
  EXPECT_NE(lane_->oldest_eligible_arrival_ns(), kNever);
  EXPECT_TRUE(lane_->cancel(b));
  EXPECT_EQ(lane_->oldest_eligible_arrival_ns(), kNever);
  EXPECT_EQ(lane_->next(), nullptr);
  submit_rows(2);
  EXPECT_EQ(next_rows(), 4);
}

// ---- Deadlines ------------------------------------------------------------------------------------------------------

TEST_F(LaneTest, AnswersAWaitingRequestAtItsDeadlineAndNotOneTickBefore) {
  make_lane(timeout(8, kSecond));
  const std::int64_t deadline_ns = now() + kMillisecond;
  const FakeRequestPtr due = submit_due(deadline_ns), other = submit_rows(1);
  fire_at(deadline_ns - 1);
  EXPECT_EQ(due->replies, 0);
  fire_at(deadline_ns);
  EXPECT_EQ(due->replies, 1);
  EXPECT_EQ(due->status.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(due->status.message(), "Run() timeout exceeded while waiting in batching queue");
  EXPECT_EQ(lane_->was_waiting_rows(), 1);
  fire_at(other->arrival_ns + kSecond);
  EXPECT_EQ(next_rows(), 1);
  EXPECT_EQ(lane_->stats().expired.value(), 1);
  expect_all_answered();
}

TEST_F(LaneTest, AnswersARunningRequestAtItsDeadlineAndDropsItsLateResult) {
  make_lane(adaptive(8));
  const std::int64_t deadline_ns = now() + kMillisecond;
  const FakeRequestPtr due = submit_due(deadline_ns), later = submit_due(deadline_ns + kSecond), other = submit_rows(1);
  std::unique_ptr<Batch> batch = lane_->next();
  ASSERT_EQ(batch->slots().size(), 3u);
  fire_at(deadline_ns - 1);
  EXPECT_EQ(due->replies, 0);
  fire_at(deadline_ns);
  EXPECT_EQ(due->replies, 1);
  EXPECT_EQ(due->status.code(), Code::kDeadlineExceeded);
  EXPECT_EQ(lane_->was_due_ns(), deadline_ns + kSecond);
  fire_at(deadline_ns + kSecond);
  EXPECT_EQ(later->status.code(), Code::kDeadlineExceeded);
  finish(std::move(batch));
  EXPECT_EQ(due->replies, 1);
  EXPECT_EQ(due->writes, 0);
  EXPECT_EQ(later->replies, 1);
  EXPECT_TRUE(other->status.ok());
  EXPECT_EQ(lane_->stats().expired.value(), 2);
  expect_all_answered();
}

TEST_F(LaneTest, AnswersInsteadOfRunningWhatExpiredBeforeAnExecutorWasFree) {
  make_lane(adaptive(8));
  const FakeRequestPtr due = submit_due(now() + kMillisecond), other = submit_rows(1);
  clock_.advance_ns(kMillisecond);
  EXPECT_EQ(next_rows(), 1);
  EXPECT_EQ(due->status.code(), Code::kDeadlineExceeded);
  EXPECT_TRUE(other->status.ok());
  expect_all_answered();
}

// Many deadlines cost few looks, and none is late by more than the time between two.
TEST_F(LaneTest, LooksAtDeadlinesThatAreCloseTogetherAtOnce) {
  make_lane(timeout(1'000, kSecond));
  const std::int64_t first_ns = now() + kMillisecond;
  std::vector<FakeRequestPtr> requests;
  for (int i = 0; i < 400; ++i) requests.push_back(submit_due(first_ns + i * kMicrosecond));
  int looks = 0;
  for (; sink_.replies() < requests.size() && looks < 400; ++looks) {
    const std::int64_t due_ns = lane_->was_due_ns();
    fire_at(due_ns);
    for (const FakeRequestPtr& request : requests) {
      if (request->replies == 0) {
        EXPECT_GT(request->deadline_ns, due_ns);
      }
    }
  }
  EXPECT_LE(looks, 4);
  expect_all_answered();
}

// ---- The window, and who is woken -----------------------------------------------------------------------------------

// Stands for an executor that has looked, found nothing and sleeps.
class Sleeper {
 public:
  explicit Sleeper(LaneGroup& group) : parking_(group.parking), ticket_(parking_.prepare()) {}
  ~Sleeper() { EXPECT_TRUE(parking_.try_cancel(ticket_)); }
  bool was_woken() const { return parking_.was_parked() == 0; }

 private:
  Parking<>& parking_;
  Parking<>::Ticket ticket_;
};

TEST_F(LaneTest, WakesAnExecutorAtTheEndOfTheWindowForExactlyOneBatch) {
  make_lane(timeout(16, 100 * kMillisecond));
  const Sleeper sleeper(group_);
  const std::int64_t end_ns = now() + 100 * kMillisecond;
  submit_rows(1);
  clock_.advance_ns(kMillisecond);
  submit_rows(2);
  fire_at(end_ns - 1);
  EXPECT_FALSE(sleeper.was_woken());
  EXPECT_EQ(lane_->next(), nullptr);
  fire_at(end_ns);
  EXPECT_TRUE(sleeper.was_woken());
  EXPECT_EQ(next_rows(), 3);
  EXPECT_EQ(lane_->next(), nullptr);
  expect_all_answered();
}

TEST_F(LaneTest, WakesAnExecutorForAFullBatchAndForNoRowBefore) {
  make_lane(timeout(3, kSecond));
  const Sleeper sleeper(group_);
  submit_rows(1), submit_rows(1);
  EXPECT_FALSE(sleeper.was_woken());
  submit_rows(1);
  EXPECT_TRUE(sleeper.was_woken());
}

TEST_F(LaneTest, WakesAnExecutorForTheFirstRequestUnderTheAdaptivePolicy) {
  make_lane(adaptive(8));
  const Sleeper sleeper(group_);
  submit_rows(1);
  EXPECT_TRUE(sleeper.was_woken());
}

TEST_F(LaneTest, WakesNobodyForMoreToComeUntilItIsAnnounced) {
  make_lane(adaptive(4));
  const Sleeper sleeper(group_);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(lane_->submit_soon(floats({1, 1})).ok());
  EXPECT_FALSE(sleeper.was_woken());
  lane_->announce();
  EXPECT_TRUE(sleeper.was_woken());
  EXPECT_EQ(next_rows(), 3);
}

TEST_F(LaneTest, WakesAnExecutorForMoreToComeOnceABatchIsFull) {
  make_lane(adaptive(2));
  const Sleeper sleeper(group_);
  for (int i = 0; i < 2; ++i) {
    EXPECT_FALSE(sleeper.was_woken());
    ASSERT_TRUE(lane_->submit_soon(floats({1, 1})).ok());
  }
  EXPECT_TRUE(sleeper.was_woken());
  EXPECT_EQ(next_rows(), 2);
}

TEST_F(LaneTest, AnnouncesWithinAMillisecondWhatNobodyAnnounces) {
  make_lane(adaptive(4));
  const Sleeper sleeper(group_);
  const std::int64_t start_ns = now();
  ASSERT_TRUE(lane_->submit_soon(floats({1, 1})).ok());
  fire_at(start_ns + kMillisecond - 1);
  EXPECT_FALSE(sleeper.was_woken());
  fire_at(start_ns + kMillisecond);
  EXPECT_TRUE(sleeper.was_woken());
  EXPECT_EQ(next_rows(), 1);
}

TEST_F(LaneTest, AnnouncesNothingThatHasAWindow) {
  make_lane(timeout(2, kSecond));
  const Sleeper sleeper(group_);
  ASSERT_TRUE(lane_->submit_soon(floats({1, 1})).ok());
  lane_->announce();
  EXPECT_FALSE(sleeper.was_woken());
  ASSERT_TRUE(lane_->submit_soon(floats({1, 1})).ok());
  EXPECT_TRUE(sleeper.was_woken());
  EXPECT_EQ(next_rows(), 2);
}

TEST_F(LaneTest, WakesAnotherExecutorForWhatABatchLeaves) {
  make_lane(adaptive(2));
  submit_rows(2), submit_rows(1);
  const Sleeper sleeper(group_);
  std::unique_ptr<Batch> batch = lane_->next();
  EXPECT_TRUE(sleeper.was_woken());
  finish(std::move(batch));
  EXPECT_EQ(next_rows(), 1);
}

// The timer called for the first window while the executor was busy; the second one must not be forgotten.
TEST_F(LaneTest, WakesAnExecutorForAWindowThatEndsAfterAnotherWasServedLate) {
  for (const bool same_bucket : {true, false}) {
    make_lane(timeout(4, 10 * kMillisecond));
    const std::int64_t start_ns = now();
    submit(floats({4, 1}));
    std::unique_ptr<Batch> running = lane_->next();
    submit(floats({3, 1}));
    clock_.set_ns(start_ns + 5 * kMillisecond);
    submit(same_bucket ? floats({3, 1}) : floats({3, 2}));
    fire_at(start_ns + 10 * kMillisecond);
    clock_.set_ns(start_ns + 12 * kMillisecond);
    finish(std::move(running));
    EXPECT_EQ(next_rows(), 3);
    EXPECT_EQ(lane_->oldest_eligible_arrival_ns(), kNever);
    {
      const Sleeper sleeper(group_);
      fire_at(start_ns + 15 * kMillisecond - 1);
      EXPECT_FALSE(sleeper.was_woken());
      EXPECT_EQ(lane_->was_due_ns(), start_ns + 15 * kMillisecond);
      fire_at(start_ns + 15 * kMillisecond);
      EXPECT_TRUE(sleeper.was_woken()) << "same bucket: " << same_bucket;
    }
    EXPECT_EQ(next_rows(), 3);
  }
}

// Two executors, of which the one that forms the batch is busy with it while the other sleeps.
TEST_F(LaneTest, WakesAnExecutorForTheWindowOfWhatAFullBatchLeft) {
  make_lane(timeout(4, 10 * kMillisecond));
  const std::int64_t start_ns = now();
  submit_rows(3);
  clock_.set_ns(start_ns + 5 * kMillisecond);
  submit_rows(3);
  clock_.set_ns(start_ns + 11 * kMillisecond);
  timer_.fire_due(now());  // late: their bucket is full, and no window is left
  std::unique_ptr<Batch> running = lane_->next();
  ASSERT_NE(running, nullptr);
  const Sleeper sleeper(group_);
  fire_at(start_ns + 15 * kMillisecond - 1);
  EXPECT_FALSE(sleeper.was_woken());
  fire_at(start_ns + 15 * kMillisecond);
  EXPECT_TRUE(sleeper.was_woken());
  finish(std::move(running));
}

TEST_F(LaneTest, KeepsTheWindowOfWhatACancelledRowHadFilled) {
  make_lane(timeout(4, 10 * kMillisecond));
  const std::int64_t start_ns = now();
  const FakeRequestPtr a = submit_rows(2);
  clock_.set_ns(start_ns + 5 * kMillisecond);
  submit_rows(2);
  fire_at(start_ns + 10 * kMillisecond);  // full, and no executor is free
  clock_.set_ns(start_ns + 11 * kMillisecond);
  EXPECT_TRUE(lane_->cancel(a));
  EXPECT_EQ(lane_->oldest_eligible_arrival_ns(), kNever);  // an executor comes, and goes to sleep
  EXPECT_EQ(lane_->was_due_ns(), start_ns + 15 * kMillisecond);
}

// What Ray Serve gets wrong: batches fixed while the executor is busy come out at the size of one window.
TEST_F(LaneTest, FillsBatchesWhileTheExecutorIsBusy) {
  make_lane(timeout(32, 10 * kMillisecond));
  std::vector<std::int64_t> sizes;
  std::unique_ptr<Batch> running;
  std::int64_t free_at_ns = 0;
  for (int millisecond = 0; millisecond < 5'000; ++millisecond, clock_.advance_ns(kMillisecond)) {
    if (millisecond % 5 == 0) submit_rows(1);
    timer_.fire_due(now());
    if (running != nullptr && now() >= free_at_ns) finish(std::move(running));
    if (running == nullptr) {
      running = lane_->next();
      if (running == nullptr) continue;
      sizes.push_back(running->rows());
      free_at_ns = now() + 100 * kMillisecond;
    }
  }
  if (running != nullptr) finish(std::move(running));
  ASSERT_GE(sizes.size(), 40u);
  for (std::size_t i = 1; i < sizes.size(); ++i) {
    EXPECT_GE(sizes[i], 16) << "batch " << i;
    EXPECT_LE(sizes[i], 24) << "batch " << i;
  }
}

TEST_F(LaneTest, MakesOneRunOfAHundredConcurrentRows) {
  make_lane(timeout(100, kSecond));
  std::vector<std::thread> threads;
  for (int i = 0; i < 100; ++i) threads.emplace_back([&, i] { submit_rows(1, static_cast<float>(i)); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(next_rows(), 100);
  EXPECT_EQ(lane_->next(), nullptr);
  expect_all_answered();
}

// ---- The slab -------------------------------------------------------------------------------------------------------

TEST_F(LaneTest, UsesOneSlabAgainAndAgain) {
  make_lane(adaptive(8));
  for (int i = 0; i < 5; ++i) {
    submit_rows(3, static_cast<float>(i));
    lane_->run_next();
  }
  EXPECT_EQ(lane_->slabs().allocated(), 1);
  EXPECT_EQ(lane_->stats().slabs_held.value(), 0);
}

TEST_F(LaneTest, ReplacesAndCountsASlabThatTheModelAdopted) {
  make_lane(adaptive(8));
  runner_->keep_slabs();
  for (int i = 0; i < 3; ++i) {
    const FakeRequestPtr request = submit_rows(1, static_cast<float>(i));
    lane_->run_next();
    EXPECT_EQ(request->reply_floats(), std::vector<float>{static_cast<float>(i)});
  }
  EXPECT_EQ(lane_->slabs().allocated(), 3);
  EXPECT_EQ(lane_->stats().slabs_held.value(), 3);
}

// ---- The end --------------------------------------------------------------------------------------------------------

TEST_F(LaneTest, RefusesNewRequestsWhenClosingAndMakesAllThatWaitsEligible) {
  make_lane(timeout(8, kSecond));
  submit_rows(1), submit(floats({1, 9}));
  group_.closing.store(true);
  const FakeRequestPtr late = floats({1, 1});
  const Status status = lane_->submit(late);
  EXPECT_EQ(status.code(), Code::kUnavailable);
  EXPECT_EQ(status.message(), "the model is being closed");
  EXPECT_FALSE(lane_->wait_drained(0));
  std::unique_ptr<Batch> batch = lane_->next();
  ASSERT_NE(batch, nullptr);
  EXPECT_EQ(batch->reason(), BatchReason::kShutdown);
  EXPECT_EQ(next_rows(), 1);
  EXPECT_FALSE(lane_->wait_drained(0));  // one still runs
  finish(std::move(batch));
  EXPECT_TRUE(lane_->wait_drained(0));
  EXPECT_EQ(late->replies, 0);
  expect_all_answered();
}

TEST_F(LaneTest, IsNotDrainedBeforeClosing) {
  make_lane(adaptive(8));
  EXPECT_FALSE(lane_->wait_drained(0));
  group_.closing.store(true);
  EXPECT_TRUE(lane_->wait_drained(0));
}

TEST_F(LaneTest, IsDrainedOnceWhatWaitedIsCancelledOrExpired) {
  make_lane(timeout(8, kSecond));
  const FakeRequestPtr cancelled = submit_rows(1);
  const std::int64_t deadline_ns = now() + kMillisecond;
  submit_due(deadline_ns);
  group_.closing.store(true);
  EXPECT_TRUE(lane_->cancel(cancelled));
  EXPECT_FALSE(lane_->wait_drained(0));
  fire_at(deadline_ns);
  EXPECT_TRUE(lane_->wait_drained(0));
  expect_all_answered();
}

TEST_F(LaneTest, WaitsForTheDrainWithoutALimitWhereNoneIsSet) {
  make_lane(adaptive(8));
  submit_rows(1);
  std::unique_ptr<Batch> batch = lane_->next();
  group_.closing.store(true);
  std::promise<void> waiting;
  std::thread executor([&] {
    waiting.get_future().wait();
    finish(std::move(batch));
  });
  waiting.set_value();
  EXPECT_TRUE(lane_->wait_drained(kNever));
  executor.join();
}

TEST_F(LaneTest, AnswersWhatWaitsAndWhatRunsWhenItIsAbandoned) {
  make_lane(timeout(2, kSecond));
  std::vector<FakeRequestPtr> requests = {submit_rows(1), submit_rows(1)};
  std::unique_ptr<Batch> running = lane_->next();
  requests.push_back(submit_rows(1));
  requests.push_back(submit(floats({1, 9})));
  lane_->oldest_eligible_arrival_ns();  // out of the mailbox
  requests.push_back(submit(floats({})));
  group_.closing.store(true);
  lane_->abandon();
  for (const FakeRequestPtr& request : requests) {
    EXPECT_EQ(request->replies, 1);
    EXPECT_EQ(request->status.code(), Code::kUnavailable);
    EXPECT_EQ(request->status.message(), "the model was closed");
  }
  EXPECT_FALSE(lane_->wait_drained(0));
  finish(std::move(running));
  EXPECT_TRUE(lane_->wait_drained(0));
  for (const FakeRequestPtr& request : requests) EXPECT_EQ(request->replies, 1);
  EXPECT_EQ(lane_->stats().closed.value(), 5);
  EXPECT_EQ(lane_->next(), nullptr);
  expect_all_answered();
}

// Who was accepted just before the end may push after everything that waited was answered.
TEST_F(LaneTest, AnswersWhatIsPushedAfterItWasAbandoned) {
  make_lane(timeout(8, kSecond));
  lane_->abandon();
  const FakeRequestPtr late = submit_rows(1);
  EXPECT_EQ(late->replies, 1);
  EXPECT_EQ(late->status.code(), Code::kUnavailable);
  expect_all_answered();
}

}  // namespace
}  // namespace headrace
