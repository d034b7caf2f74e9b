// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <cstdint>

#include "net/timeline.h"

namespace headrace {
namespace {

constexpr std::int64_t kSlice = Timeline::kShortestSliceNs;
constexpr auto kSlices = static_cast<std::int64_t>(Timeline::kSlicesMax);

TEST(Timeline, AnAnswerCountsInTheSliceOfItsTime) {
  Timeline timeline;
  timeline.record(-5, 100, false);
  timeline.record(kSlice - 1, 300, true);
  timeline.record(2 * kSlice, 500, false);
  ASSERT_EQ(timeline.slices().size(), 3u);
  EXPECT_EQ(timeline.slices()[0].latency.count(), 1u);
  EXPECT_EQ(timeline.slices()[0].latency.max_ns(), 100);
  EXPECT_EQ(timeline.slices()[0].failed, 1u);
  EXPECT_EQ(timeline.slices()[1].latency.count(), 0u);
  EXPECT_EQ(timeline.slices()[2].latency.max_ns(), 500);
  EXPECT_EQ(timeline.slice_ns(), kSlice);
}

TEST(Timeline, ALongRunHasLongerSlicesAndLosesNothing) {
  Timeline timeline;
  for (std::int64_t i = 0; i < 5 * kSlices; ++i) timeline.record(i * kSlice, i, i % 8 == 5);
  EXPECT_EQ(timeline.slice_ns(), 8 * kSlice);
  ASSERT_EQ(timeline.slices().size(), static_cast<std::size_t>(5 * kSlices / 8));
  std::int64_t next = 0;
  std::uint64_t failed = 0;
  for (const Timeline::Slice& slice : timeline.slices()) {
    EXPECT_EQ(slice.latency.count(), 7u);
    EXPECT_EQ(slice.latency.min_ns(), next);
    EXPECT_EQ(slice.latency.max_ns(), next + 7);
    next += 8;
    failed += slice.failed;
  }
  EXPECT_EQ(failed, static_cast<std::uint64_t>(5 * kSlices / 8));
}

TEST(Timeline, MergesShortSlicesIntoLongOnesAndTheOtherWayRound) {
  Timeline brief;
  brief.record(0, 1, true);
  brief.record(kSlice, 2, false);
  Timeline lengthy;
  lengthy.record(kSlices * kSlice, 3, false);
  ASSERT_EQ(lengthy.slice_ns(), 2 * kSlice);

  Timeline first = brief;
  first.merge(lengthy);
  Timeline second = lengthy;
  second.merge(brief);
  for (const Timeline& merged : {first, second}) {
    EXPECT_EQ(merged.slice_ns(), 2 * kSlice);
    ASSERT_EQ(merged.slices().size(), Timeline::kSlicesMax / 2 + 1);
    EXPECT_EQ(merged.slices().front().latency.count(), 1u);
    EXPECT_EQ(merged.slices().front().failed, 1u);
    EXPECT_EQ(merged.slices().back().latency.max_ns(), 3);
  }
}

}  // namespace
}  // namespace headrace
