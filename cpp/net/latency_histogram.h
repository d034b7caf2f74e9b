// SPDX-License-Identifier: Apache-2.0
//
// LatencyHistogram: how often each latency was seen, in HdrHistogram's buckets.
//
// A value is kept to so many significant decimal digits, whatever its size: the first 2^k buckets are 1 ns wide, and
// each following half of that many are twice as wide as those before (https://hdrhistogram.org).
//
// Thread safety: none; each thread has its own, merged at the end.
// Invariants: min_ns() and max_ns() are exact; a quantile is at most one bucket's width above the value that was
// recorded.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace headrace {

class LatencyHistogram {
 public:
  // What takes longer counts as an hour.
  static constexpr std::int64_t kLimitNs = 3'600'000'000'000;

  // REQUIRES: 1 to 3 digits.
  explicit LatencyHistogram(int significant_digits = 3);

  void record(std::int64_t latency_ns);

  // REQUIRES: as many significant digits.
  void merge(const LatencyHistogram& other);

  std::uint64_t count() const { return count_; }
  std::int64_t min_ns() const { return count_ == 0 ? 0 : min_ns_; }
  std::int64_t max_ns() const { return max_ns_; }
  double mean_ns() const { return count_ == 0 ? 0.0 : sum_ns_ / static_cast<double>(count_); }

  // The latency that this share of what was recorded did not exceed; 0 where nothing was.  REQUIRES: 0 <= quantile
  // <= 1.
  std::int64_t quantile_ns(double quantile) const;

  // Everything in lowest_ns..highest_ns fell into this bucket.
  struct Bucket {
    std::int64_t lowest_ns;
    std::int64_t highest_ns;
    std::uint64_t count;
  };

  // Those that are not empty, in order.
  std::vector<Bucket> buckets() const;

 private:
  std::size_t index_of(std::int64_t latency_ns) const;
  std::int64_t lowest_ns(std::size_t index) const;
  std::int64_t highest_ns(std::size_t index) const { return lowest_ns(index + 1) - 1; }

  int half_bits_;  // 2^half_bits_ buckets share a width
  std::uint64_t count_ = 0;
  std::int64_t min_ns_ = kLimitNs;
  std::int64_t max_ns_ = 0;
  double sum_ns_ = 0;
  std::vector<std::uint64_t> counts_;
};

}  // namespace headrace
