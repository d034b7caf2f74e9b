// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

#include "core/scheduler.h"
#include "fake_request.h"

namespace headrace {
namespace {

constexpr std::int64_t kMillisecond = 1'000'000;
constexpr std::int64_t kStart = 1'000 * kMillisecond;
constexpr std::size_t kNoLimit = std::size_t{1} << 30;

PolicyOptions adaptive(std::int64_t max_batch_size) {
  return {.policy = Policy::kAdaptive, .max_batch_size = max_batch_size};
}

PolicyOptions timeout(std::int64_t max_batch_size, std::int64_t batch_timeout_ns) {
  return {.policy = Policy::kTimeout, .max_batch_size = max_batch_size, .batch_timeout_ns = batch_timeout_ns};
}

// As the lane fills it in.
FakeRequestPtr accept(FakeRequestPtr request, std::int64_t arrival_ns) {
  request->arrival_ns = arrival_ns;
  for (const TensorView& input : request->inputs) request->bytes += input.bytes;
  if (!request->inputs.empty() && !request->inputs[0].shape.empty()) request->rows = request->inputs[0].shape[0];
  return request;
}

FakeRequestPtr floats(Shape shape, std::int64_t arrival_ns) {
  FakeRequestPtr request(new FakeRequest());
  request->add_floats(std::move(shape));
  return accept(std::move(request), arrival_ns);
}

FakeRequestPtr row(std::int64_t arrival_ns) { return floats({1, 2}, arrival_ns); }

FakeRequestPtr row_due(std::int64_t deadline_ns) {
  FakeRequestPtr request = row(kStart);
  request->deadline_ns = deadline_ns;
  return request;
}

FakeRequestPtr alone(std::int64_t arrival_ns) {
  FakeRequestPtr request = floats({}, arrival_ns);
  request->alone = true;
  return request;
}

void answer(Request& request) {
  Request::State from;
  ASSERT_TRUE(request.claim_answer(&from));
}

// Hands them over as a mailbox does: linked, with one reference each.
void absorb(Scheduler& scheduler, const std::vector<FakeRequestPtr>& oldest_first) {
  Request* head = nullptr;
  for (auto request = oldest_first.rbegin(); request != oldest_first.rend(); ++request) {
    Request* link = RequestPtr(*request).detach();
    link->next = head;
    head = link;
  }
  scheduler.absorb(head);
}

std::vector<const Request*> requests_of(const Scheduler::Formed& formed) {
  std::vector<const Request*> requests;
  if (formed.batch != nullptr)
    for (const Slot& slot : formed.batch->slots()) requests.push_back(slot.request.get());
  return requests;
}

std::vector<const Request*> requests_of(const std::vector<RequestPtr>& handed_out) {
  std::vector<const Request*> requests;
  for (const RequestPtr& request : handed_out) requests.push_back(request.get());
  return requests;
}

std::vector<const Request*> these(std::initializer_list<FakeRequestPtr> list) {
  std::vector<const Request*> requests;
  for (const FakeRequestPtr& request : list) requests.push_back(request.get());
  return requests;
}

TEST(Scheduler, FormsNothingWhereNothingWaits) {
  Scheduler scheduler(adaptive(4), kNoLimit);
  scheduler.absorb(nullptr);
  EXPECT_EQ(scheduler.form(kStart, false).batch, nullptr);
  EXPECT_EQ(scheduler.head(kStart, false).arrival_ns, kNever);
  EXPECT_EQ(scheduler.head(kStart, true).arrival_ns, kNever);
  EXPECT_EQ(scheduler.earliest_deadline_ns(), kNever);
  EXPECT_TRUE(scheduler.sweep(kStart).empty());
}

TEST(Scheduler, FormsWhatWaitsInArrivalOrderAndClaimsItsRun) {
  Scheduler scheduler(adaptive(8), kNoLimit);
  const FakeRequestPtr a = floats({2, 3}, kStart), b = floats({1, 3}, kStart + 1), c = floats({3, 3}, kStart + 2);
  absorb(scheduler, {a, b});
  absorb(scheduler, {c});
  const Scheduler::Formed formed = scheduler.form(kStart + 5, false);
  ASSERT_EQ(requests_of(formed), these({a, b, c}));
  EXPECT_EQ(formed.batch->rows(), 6);
  EXPECT_EQ(formed.batch->slots()[2].first_row, 3);
  EXPECT_EQ(formed.batch->formed_ns(), kStart + 5);
  EXPECT_EQ(formed.batch->reason(), BatchReason::kExecutorFree);
  EXPECT_FALSE(a->claim_run());
  EXPECT_FALSE(a->was_answered());
  EXPECT_EQ(scheduler.form(kStart + 5, false).batch, nullptr);
}

TEST(Scheduler, LeavesWhatDoesNotFitToTheNextBatch) {
  Scheduler scheduler(adaptive(4), kNoLimit);
  const FakeRequestPtr a = floats({3, 2}, kStart), b = floats({2, 2}, kStart), c = floats({2, 2}, kStart);
  absorb(scheduler, {a, b, c});
  const Scheduler::Formed first = scheduler.form(kStart, false);
  EXPECT_EQ(requests_of(first), these({a}));
  EXPECT_EQ(first.batch->reason(), BatchReason::kFull);
  const Scheduler::Formed second = scheduler.form(kStart, false);
  EXPECT_EQ(requests_of(second), these({b, c}));
  EXPECT_EQ(second.batch->reason(), BatchReason::kFull);
}

// ---- Buckets --------------------------------------------------------------------------------------------------------

TEST(Scheduler, BatchesOnlyRowsOfTheSameTrailingShape) {
  Scheduler scheduler(adaptive(8), kNoLimit);
  const FakeRequestPtr a = floats({1, 6}, kStart), b = floats({1, 7}, kStart + 1), c = floats({2, 6}, kStart + 2),
                       d = floats({1, 6, 1}, kStart + 3), e = floats({1}, kStart + 4), f = floats({2, 7}, kStart + 5);
  absorb(scheduler, {a, b, c, d, e, f});
  EXPECT_EQ(requests_of(scheduler.form(kStart + 9, false)), these({a, c}));
  EXPECT_EQ(requests_of(scheduler.form(kStart + 9, false)), these({b, f}));
  EXPECT_EQ(requests_of(scheduler.form(kStart + 9, false)), these({d}));
  EXPECT_EQ(requests_of(scheduler.form(kStart + 9, false)), these({e}));
}

TEST(Scheduler, BatchesOnlyRowsOfTheSameType) {
  Scheduler scheduler(adaptive(8), kNoLimit);
  const auto typed = [](DType dtype, std::int64_t arrival_ns) {
    FakeRequestPtr request(new FakeRequest());
    request->add(dtype, {1, 2}, std::string(2 * dtype_bytes(dtype), '\0'));
    return accept(std::move(request), arrival_ns);
  };
  const FakeRequestPtr a = typed(DType::kFloat, kStart), b = typed(DType::kDouble, kStart + 1),
                       c = typed(DType::kFloat, kStart + 2), d = typed(DType::kInt32, kStart + 3);
  absorb(scheduler, {a, b, c, d});
  EXPECT_EQ(requests_of(scheduler.form(kStart + 9, false)), these({a, c}));
  EXPECT_EQ(requests_of(scheduler.form(kStart + 9, false)), these({b}));
  EXPECT_EQ(requests_of(scheduler.form(kStart + 9, false)), these({d}));
}

TEST(Scheduler, ComparesTheShapesOfEveryInput) {
  Scheduler scheduler(adaptive(8), kNoLimit);
  const auto two = [](Shape first, Shape second, std::int64_t arrival_ns) {
    FakeRequestPtr request(new FakeRequest());
    request->add_floats(std::move(first)).add_floats(std::move(second));
    return accept(std::move(request), arrival_ns);
  };
  // The same dimensions in a row, divided otherwise between the inputs.
  const FakeRequestPtr a = two({1, 1, 2}, {1}, kStart), b = two({1, 1}, {1, 2}, kStart + 1),
                       c = two({1}, {1, 1, 2}, kStart + 2), d = two({1, 1}, {1, 3}, kStart + 3),
                       e = two({2, 1}, {2, 2}, kStart + 4), f = floats({1, 1}, kStart + 5);
  absorb(scheduler, {a, b, c, d, e, f});
  EXPECT_EQ(requests_of(scheduler.form(kStart + 9, false)), these({a}));
  EXPECT_EQ(requests_of(scheduler.form(kStart + 9, false)), these({b, e}));
  EXPECT_EQ(requests_of(scheduler.form(kStart + 9, false)), these({c}));
  EXPECT_EQ(requests_of(scheduler.form(kStart + 9, false)), these({d}));
  EXPECT_EQ(requests_of(scheduler.form(kStart + 9, false)), these({f}));
}

TEST(Scheduler, HoldsUpNobodyForAnOddShape) {
  Scheduler scheduler(timeout(2, 10 * kMillisecond), kNoLimit);
  const FakeRequestPtr odd = floats({1, 99}, kStart), a = row(kStart + 1), b = row(kStart + 2);
  absorb(scheduler, {odd, a, b});
  EXPECT_EQ(requests_of(scheduler.form(kStart + 2, false)), these({a, b}));
  EXPECT_EQ(scheduler.form(kStart + 10 * kMillisecond - 1, false).batch, nullptr);
  EXPECT_EQ(requests_of(scheduler.form(kStart + 10 * kMillisecond, false)), these({odd}));
}

TEST(Scheduler, GivesTheTurnToTheEligibleBucketWithTheOldestHead) {
  Scheduler scheduler(timeout(2, 10 * kMillisecond), kNoLimit);
  const FakeRequestPtr z = floats({1, 9}, kStart), a = floats({1, 1}, kStart + 1), b = floats({1, 1}, kStart + 3),
                       c = floats({1, 1}, kStart + 4);
  absorb(scheduler, {z, a, b, c});
  // z is older and not eligible yet; then it is, and c is eligible too.
  EXPECT_EQ(scheduler.head(kStart + 5, false).arrival_ns, kStart + 1);
  EXPECT_EQ(scheduler.head(kStart + 5, false).next_eligible_at_ns, kStart + 10 * kMillisecond);
  EXPECT_EQ(requests_of(scheduler.form(kStart + 5, false)), these({a, b}));
  EXPECT_EQ(scheduler.head(kStart + 20 * kMillisecond, false).arrival_ns, kStart);
  EXPECT_EQ(requests_of(scheduler.form(kStart + 20 * kMillisecond, false)), these({z}));
  EXPECT_EQ(requests_of(scheduler.form(kStart + 20 * kMillisecond, false)), these({c}));
}

TEST(Scheduler, RunsByItselfAndAtOnceWhatRunsAlone) {
  Scheduler scheduler(timeout(8, 10 * kMillisecond), kNoLimit);
  const FakeRequestPtr part_full = row(kStart), a = alone(kStart + 1), b = alone(kStart + 2);
  absorb(scheduler, {part_full, a, b});
  const Scheduler::Formed first = scheduler.form(kStart + 2, false);
  EXPECT_EQ(requests_of(first), these({a}));
  EXPECT_EQ(first.batch->reason(), BatchReason::kAlone);
  EXPECT_EQ(requests_of(scheduler.form(kStart + 2, false)), these({b}));
  EXPECT_EQ(scheduler.form(kStart + 2, false).batch, nullptr);
}

TEST(Scheduler, RunsAWholeRequestAloneWhateverItsRows) {
  Scheduler scheduler(adaptive(2), kNoLimit);
  const FakeRequestPtr large = floats({50, 2}, kStart);
  large->alone = true;
  absorb(scheduler, {large});
  const Scheduler::Formed formed = scheduler.form(kStart, false);
  ASSERT_NE(formed.batch, nullptr);
  EXPECT_EQ(formed.batch->rows(), 50);
}

// ---- The window -----------------------------------------------------------------------------------------------------

TEST(Scheduler, FormsAPartFullBatchAtTheEndOfItsWindowAndNotOneTickBefore) {
  Scheduler scheduler(timeout(8, 10 * kMillisecond), kNoLimit);
  const FakeRequestPtr a = row(kStart), b = row(kStart + 5 * kMillisecond);
  absorb(scheduler, {a, b});
  const std::int64_t end_ns = kStart + 10 * kMillisecond;
  EXPECT_EQ(scheduler.head(end_ns - 1, false).arrival_ns, kNever);
  EXPECT_EQ(scheduler.head(end_ns - 1, false).next_eligible_at_ns, end_ns);
  EXPECT_EQ(scheduler.form(end_ns - 1, false).batch, nullptr);
  EXPECT_EQ(scheduler.head(end_ns, false).arrival_ns, kStart);
  EXPECT_EQ(scheduler.head(end_ns, false).next_eligible_at_ns, kNever);
  const Scheduler::Formed formed = scheduler.form(end_ns, false);
  EXPECT_EQ(requests_of(formed), these({a, b}));
  EXPECT_EQ(formed.batch->reason(), BatchReason::kWindow);
}

TEST(Scheduler, FormsAFullBatchAtOnceAndLeavesTheRestItsOwnWindow) {
  Scheduler scheduler(timeout(2, 10 * kMillisecond), kNoLimit);
  const FakeRequestPtr a = row(kStart), b = row(kStart), c = row(kStart + kMillisecond);
  absorb(scheduler, {a, b, c});
  const Scheduler::Formed formed = scheduler.form(kStart + kMillisecond, false);
  EXPECT_EQ(requests_of(formed), these({a, b}));
  EXPECT_EQ(formed.batch->reason(), BatchReason::kFull);
  EXPECT_EQ(scheduler.form(kStart + 11 * kMillisecond - 1, false).batch, nullptr);
  EXPECT_EQ(requests_of(scheduler.form(kStart + 11 * kMillisecond, false)), these({c}));
}

TEST(Scheduler, FormsEverythingWhenClosing) {
  Scheduler scheduler(timeout(8, 10 * kMillisecond), kNoLimit);
  const FakeRequestPtr a = row(kStart), odd = floats({1, 9}, kStart + 1);
  absorb(scheduler, {a, odd});
  EXPECT_EQ(scheduler.head(kStart + 1, true).arrival_ns, kStart);
  const Scheduler::Formed formed = scheduler.form(kStart + 1, true);
  EXPECT_EQ(requests_of(formed), these({a}));
  EXPECT_EQ(formed.batch->reason(), BatchReason::kShutdown);
  EXPECT_EQ(requests_of(scheduler.form(kStart + 1, true)), these({odd}));
}

// ---- Limits ---------------------------------------------------------------------------------------------------------

TEST(Scheduler, FormsNoBatchOfMoreBytesThanASlabMayHave) {
  Scheduler scheduler(adaptive(64), /*slab_bytes_max=*/1'000);
  std::vector<FakeRequestPtr> requests;
  for (int i = 0; i < 10; ++i) requests.push_back(floats({1, 64}, kStart + i));  // 256 bytes each
  absorb(scheduler, requests);
  std::vector<std::int64_t> rows;
  for (;;) {
    const Scheduler::Formed formed = scheduler.form(kStart + 10, false);
    if (formed.batch == nullptr) break;
    rows.push_back(formed.batch->rows());
  }
  EXPECT_EQ(rows, (std::vector<std::int64_t>{3, 3, 3, 1}));
}

// ---- Deadlines and answers given meanwhile --------------------------------------------------------------------------

TEST(Scheduler, HandsOutWhatExpiredAndFormsTheRest) {
  Scheduler scheduler(adaptive(8), kNoLimit);
  const FakeRequestPtr a = row_due(kStart + 5), b = row_due(kStart + 6), c = row(kStart);
  absorb(scheduler, {a, b, c});
  const Scheduler::Formed formed = scheduler.form(kStart + 5, false);
  EXPECT_EQ(requests_of(formed.expired), these({a}));
  EXPECT_EQ(requests_of(formed), these({b, c}));
  EXPECT_FALSE(a->was_answered());
}

TEST(Scheduler, LooksAtTheNextBucketWhereAllOfOneExpired) {
  Scheduler scheduler(adaptive(8), kNoLimit);
  const FakeRequestPtr a = row_due(kStart + 5), b = floats({1, 9}, kStart + 1);
  absorb(scheduler, {a, b});
  const Scheduler::Formed formed = scheduler.form(kStart + 5, false);
  EXPECT_EQ(requests_of(formed.expired), these({a}));
  EXPECT_EQ(requests_of(formed), these({b}));
}

TEST(Scheduler, DropsWhatCannotBeAnsweredInTimeByWhatItMeasured) {
  Scheduler scheduler(adaptive(8), kNoLimit);
  scheduler.record_run(1, 10 * kMillisecond, kStart);
  const FakeRequestPtr a = row_due(kStart + 9 * kMillisecond), b = row_due(kStart + 10 * kMillisecond);
  absorb(scheduler, {a, b});
  const Scheduler::Formed formed = scheduler.form(kStart, false);
  EXPECT_EQ(requests_of(formed.expired), these({a}));
  EXPECT_EQ(requests_of(formed), these({b}));
}

TEST(Scheduler, FormsNothingOfWhatWasAnsweredMeanwhile) {
  Scheduler scheduler(adaptive(8), kNoLimit);
  const FakeRequestPtr a = row(kStart), b = row(kStart + 1), c = floats({1, 9}, kStart + 2);
  absorb(scheduler, {a, b, c});
  answer(*a);
  answer(*c);
  const Scheduler::Formed formed = scheduler.form(kStart + 2, false);
  EXPECT_EQ(requests_of(formed), these({b}));
  const Scheduler::Formed next = scheduler.form(kStart + 2, false);
  EXPECT_EQ(next.batch, nullptr);
  EXPECT_TRUE(next.expired.empty());
}

TEST(Scheduler, SweepsOutWhatWasAnsweredAndWhatExpiredAndKeepsTheOrder) {
  Scheduler scheduler(timeout(4, 10 * kMillisecond), kNoLimit);
  const FakeRequestPtr a = row_due(kStart + 50), b = row_due(kStart + 10), c = row_due(kStart + 40), d = row(kStart),
                       e = floats({1, 9}, kStart);
  absorb(scheduler, {a, b, c, d, e});
  EXPECT_EQ(scheduler.earliest_deadline_ns(), kStart + 10);
  answer(*a);
  answer(*e);
  EXPECT_TRUE(requests_of(scheduler.sweep(kStart + 9)).empty());
  EXPECT_EQ(scheduler.earliest_deadline_ns(), kStart + 10);
  EXPECT_EQ(requests_of(scheduler.sweep(kStart + 10)), these({b}));
  EXPECT_EQ(scheduler.earliest_deadline_ns(), kStart + 40);
  // What is left is no full batch any more, and its bucket takes what comes.
  EXPECT_EQ(scheduler.form(kStart + 11, false).batch, nullptr);
  const FakeRequestPtr f = row(kStart + 12), g = row(kStart + 12);
  absorb(scheduler, {f, g});
  EXPECT_EQ(requests_of(scheduler.form(kStart + 12, false)), these({c, d, f, g}));
  EXPECT_EQ(scheduler.form(kNever - 1, false).batch, nullptr);
}

TEST(Scheduler, SweepsOutEverythingAtTheEndOfTime) {
  Scheduler scheduler(timeout(4, 10 * kMillisecond), kNoLimit);
  const FakeRequestPtr a = row(kStart), b = alone(kStart), c = floats({1, 9}, kStart);
  absorb(scheduler, {a, b, c});
  EXPECT_EQ(scheduler.sweep(kNever).size(), 3u);
  EXPECT_EQ(scheduler.head(kStart, true).arrival_ns, kNever);
}

TEST(Scheduler, TakesUpABucketAnewAfterItsLastRequestLeft) {
  Scheduler scheduler(adaptive(4), kNoLimit);
  for (int round = 0; round < 3; ++round) {
    const FakeRequestPtr a = row(kStart), b = row(kStart);
    absorb(scheduler, {a});
    EXPECT_EQ(requests_of(scheduler.form(kStart, false)), these({a}));
    absorb(scheduler, {b});
    answer(*b);
    EXPECT_TRUE(scheduler.sweep(kStart).empty());
  }
}

TEST(Scheduler, HoldsOneReferenceToWhatWaitsAndDropsItAtTheEnd) {
  int destroyed = 0;
  const auto counted = [&](std::int64_t arrival_ns) {
    FakeRequestPtr request = row(arrival_ns);
    request->on_destroyed = [&] { ++destroyed; };
    return request;
  };
  {
    Scheduler scheduler(adaptive(2), kNoLimit);
    absorb(scheduler, {counted(kStart), counted(kStart), counted(kStart), counted(kStart)});
    EXPECT_EQ(destroyed, 0);
    scheduler.form(kStart, false);  // and lets the batch go
    EXPECT_EQ(destroyed, 2);
  }
  EXPECT_EQ(destroyed, 4);
}

}  // namespace
}  // namespace headrace
