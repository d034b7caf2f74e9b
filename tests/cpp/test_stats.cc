// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "core/stats.h"
#include "fake_request.h"

namespace headrace {
namespace {

// A batch of requests with `rows` each, that arrived at `arrival_ns`, started at 100 and was done at 150.
void count_batch(Stats& stats, const std::vector<std::int64_t>& rows, std::int64_t arrival_ns, BatchReason reason) {
  std::vector<RequestPtr> requests;
  for (const std::int64_t count : rows) {
    RequestPtr request(new FakeRequest());
    request->rows = count;
    request->arrival_ns = arrival_ns;
    requests.push_back(std::move(request));
  }
  Batch batch(std::move(requests), reason, 90);
  FakeSink sink;
  for (const Slot& slot : batch.slots()) slot.request->sink = &sink;
  batch.start(100);
  batch.finish(Internal("not run"), {}, 150);
  stats.count_run(batch);
}

TEST(Stats, CountsBatchesByRowsAndReasonAndTheTimesOfTheirRequests) {
  Stats stats(4);
  count_batch(stats, {1, 2}, 70, BatchReason::kWindow);
  count_batch(stats, {4}, 40, BatchReason::kFull);
  count_batch(stats, {3}, 100, BatchReason::kWindow);
  EXPECT_EQ(stats.batches.value(), 3);
  EXPECT_EQ(stats.batch_requests.value(), 4);
  EXPECT_EQ(stats.batch_rows.value(), 10);
  EXPECT_EQ(stats.wait_ns.value(), 30 + 30 + 60 + 0);
  EXPECT_EQ(stats.run_ns.value(), 150);
  EXPECT_EQ(stats.batches_by_reason[static_cast<std::size_t>(BatchReason::kWindow)].value(), 2);
  EXPECT_EQ(stats.batches_by_reason[static_cast<std::size_t>(BatchReason::kFull)].value(), 1);
  EXPECT_EQ(stats.batches_by_reason[static_cast<std::size_t>(BatchReason::kAlone)].value(), 0);
  EXPECT_EQ(stats.batches_by_rows[3].value(), 2);
  EXPECT_EQ(stats.batches_by_rows[4].value(), 1);
}

TEST(Stats, CountsBatchesLargerThanTheLargestTogether) {
  Stats stats(4);
  count_batch(stats, {5}, 0, BatchReason::kAlone);
  count_batch(stats, {1'000}, 0, BatchReason::kAlone);
  count_batch(stats, {0}, 0, BatchReason::kAlone);
  EXPECT_EQ(stats.batches_by_rows.size(), 6u);
  EXPECT_EQ(stats.batches_by_rows[5].value(), 2);
  EXPECT_EQ(stats.batches_by_rows[0].value(), 1);
}

TEST(Stats, LosesNoCountBetweenThreads) {
  constexpr int kThreads = 4, kCounts = 20'000;
  Counter counter;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kCounts; ++i) {
        ++counter;
        counter.add(2);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(counter.value(), 3 * kThreads * kCounts);
}

}  // namespace
}  // namespace headrace
