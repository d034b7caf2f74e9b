// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "net/latency_histogram.h"

namespace headrace {
namespace {

// What HdrHistogram makes of 1 ns to 1 h with 3 significant digits: 2048 buckets of 1 ns, then 1024 of each power of
// two.
TEST(LatencyHistogram, ItsBucketsAreThoseOfHdrHistogram) {
  LatencyHistogram histogram;
  for (const std::int64_t ns : {0, 1, 2047, 2048, 2049, 4095, 4096, 10'000, 1'000'000}) histogram.record(ns);
  std::vector<std::int64_t> lowest;
  std::vector<std::int64_t> highest;
  for (const auto& bucket : histogram.buckets()) {
    lowest.push_back(bucket.lowest_ns);
    highest.push_back(bucket.highest_ns);
  }
  EXPECT_EQ(lowest, (std::vector<std::int64_t>{0, 1, 2047, 2048, 4094, 4096, 10'000, 999'936}));
  EXPECT_EQ(highest, (std::vector<std::int64_t>{0, 1, 2047, 2049, 4095, 4099, 10'007, 1'000'447}));
  EXPECT_EQ(histogram.buckets()[3].count, 2u);
}

TEST(LatencyHistogram, EveryValueLiesInABucketThatIsAThousandthWideAtMost) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 2000; ++i) {
    const auto ns = static_cast<std::int64_t>(std::exp2(std::uniform_real_distribution(0.0, 41.7)(random)));
    LatencyHistogram histogram;
    histogram.record(ns);
    const auto [lowest_ns, highest_ns, count] = histogram.buckets().at(0);
    EXPECT_LE(lowest_ns, ns);
    EXPECT_GE(highest_ns, ns);
    EXPECT_LE(static_cast<double>(highest_ns - lowest_ns), 0.001 * static_cast<double>(ns));
    EXPECT_EQ(count, 1u);
  }
}

TEST(LatencyHistogram, QuantilesAreThoseOfTheSortedValuesToThreeDigits) {
  std::mt19937_64 random(2);
  std::lognormal_distribution<double> latency_us(5.0, 2.0);
  LatencyHistogram histogram;
  std::vector<std::int64_t> sorted;
  for (int i = 0; i < 10'000; ++i) {
    sorted.push_back(static_cast<std::int64_t>(1e3 * latency_us(random)));
    histogram.record(sorted.back());
  }
  std::sort(sorted.begin(), sorted.end());
  for (const double quantile : {0.0001, 0.1, 0.5, 0.9, 0.99, 0.999, 0.9999}) {
    const auto place = static_cast<std::size_t>(std::llround(quantile * 10'000)) - 1;
    const auto exact = static_cast<double>(sorted[place]);
    EXPECT_GE(static_cast<double>(histogram.quantile_ns(quantile)), exact) << quantile;
    EXPECT_LE(static_cast<double>(histogram.quantile_ns(quantile)), 1.001 * exact) << quantile;
  }
  EXPECT_EQ(histogram.quantile_ns(1.0), sorted.back());
  EXPECT_EQ(histogram.max_ns(), sorted.back());
  EXPECT_EQ(histogram.min_ns(), sorted.front());
}

TEST(LatencyHistogram, MergedHistogramsAreOneOfEverything) {
  LatencyHistogram all;
  LatencyHistogram odd;
  LatencyHistogram even;
  for (std::int64_t i = 1; i <= 1000; ++i) {
    all.record(i * i);
    (i % 2 == 0 ? even : odd).record(i * i);
  }
  odd.merge(even);
  EXPECT_EQ(odd.count(), 1000u);
  EXPECT_EQ(odd.min_ns(), 1);
  EXPECT_EQ(odd.max_ns(), 1'000'000);
  EXPECT_DOUBLE_EQ(odd.mean_ns(), 333'833.5);
  for (int percent = 0; percent <= 100; ++percent) {
    EXPECT_EQ(odd.quantile_ns(percent / 100.0), all.quantile_ns(percent / 100.0));
  }
}

TEST(LatencyHistogram, WhatIsOutOfRangeCountsAsItsEnds) {
  LatencyHistogram histogram;
  histogram.record(-1);
  histogram.record(LatencyHistogram::kLimitNs + 1);
  EXPECT_EQ(histogram.count(), 2u);
  EXPECT_EQ(histogram.min_ns(), 0);
  EXPECT_EQ(histogram.max_ns(), LatencyHistogram::kLimitNs);
  EXPECT_EQ(histogram.quantile_ns(1.0), LatencyHistogram::kLimitNs);
}

TEST(LatencyHistogram, AnEmptyOneHasOnlyZeros) {
  const LatencyHistogram histogram;
  EXPECT_EQ(histogram.count(), 0u);
  EXPECT_EQ(histogram.min_ns(), 0);
  EXPECT_EQ(histogram.max_ns(), 0);
  EXPECT_EQ(histogram.mean_ns(), 0.0);
  EXPECT_EQ(histogram.quantile_ns(0.5), 0);
  EXPECT_TRUE(histogram.buckets().empty());
}

TEST(LatencyHistogram, FewerDigitsMakeWiderBuckets) {
  LatencyHistogram coarse(1);
  coarse.record(1000);
  coarse.record(1007);
  ASSERT_EQ(coarse.buckets().size(), 1u);
  EXPECT_EQ(coarse.buckets()[0].lowest_ns, 992);
  EXPECT_EQ(coarse.buckets()[0].highest_ns, 1023);
}

}  // namespace
}  // namespace headrace
