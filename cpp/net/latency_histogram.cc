// SPDX-License-Identifier: Apache-2.0

#include "net/latency_histogram.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>

namespace headrace {

namespace {

// Buckets of one width must tell apart 2 * 10^digits values, half of them for each power of two.
int half_bits_for(int significant_digits) {
  unsigned values = 2;
  for (int digit = 0; digit < significant_digits; ++digit) values *= 10;
  return static_cast<int>(std::bit_width(values - 1)) - 1;
}

}  // namespace

LatencyHistogram::LatencyHistogram(int significant_digits) : half_bits_(half_bits_for(significant_digits)) {
  assert(significant_digits >= 1 && significant_digits <= 3);
  counts_.resize(index_of(kLimitNs) + 1);
}

void LatencyHistogram::record(std::int64_t latency_ns) {
  latency_ns = std::clamp<std::int64_t>(latency_ns, 0, kLimitNs);
  ++counts_[index_of(latency_ns)];
  ++count_;
  min_ns_ = std::min(min_ns_, latency_ns);
  max_ns_ = std::max(max_ns_, latency_ns);
  sum_ns_ += static_cast<double>(latency_ns);
}

void LatencyHistogram::merge(const LatencyHistogram& other) {
  assert(half_bits_ == other.half_bits_);
  for (std::size_t index = 0; index < counts_.size(); ++index) counts_[index] += other.counts_[index];
  count_ += other.count_;
  min_ns_ = std::min(min_ns_, other.min_ns_);
  max_ns_ = std::max(max_ns_, other.max_ns_);
  sum_ns_ += other.sum_ns_;
}

std::int64_t LatencyHistogram::quantile_ns(double quantile) const {
  // The product may be a rounding error above the whole number that is meant.
  constexpr double kRounding = 1e-9;
  const double wanted = std::ceil(quantile * static_cast<double>(count_) * (1 - kRounding));
  const auto enough = std::max<std::uint64_t>(1, static_cast<std::uint64_t>(wanted));
  std::uint64_t seen = 0;
  for (std::size_t index = 0; index < counts_.size(); ++index) {
    seen += counts_[index];
    if (seen >= enough) return std::clamp(highest_ns(index), min_ns_, max_ns_);
  }
  return max_ns_;
}

std::vector<LatencyHistogram::Bucket> LatencyHistogram::buckets() const {
  std::vector<Bucket> filled;
  for (std::size_t index = 0; index < counts_.size(); ++index) {
    if (counts_[index] != 0) filled.push_back({lowest_ns(index), highest_ns(index), counts_[index]});
  }
  return filled;
}

std::size_t LatencyHistogram::index_of(std::int64_t latency_ns) const {
  const auto value = static_cast<std::uint64_t>(latency_ns);
  const int shift = std::max(0, static_cast<int>(std::bit_width(value)) - (half_bits_ + 1));
  return (static_cast<std::size_t>(shift) << half_bits_) + static_cast<std::size_t>(value >> shift);
}

std::int64_t LatencyHistogram::lowest_ns(std::size_t index) const {
  const std::size_t half = std::size_t{1} << half_bits_;
  if (index < 2 * half) return static_cast<std::int64_t>(index);
  const std::size_t shift = index / half - 1;
  return static_cast<std::int64_t>((half + index % half) << shift);
}

}  // namespace headrace
