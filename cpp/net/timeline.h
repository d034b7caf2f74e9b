// SPDX-License-Identifier: Apache-2.0
//
// Timeline: what was answered when, and how fast, in slices of a run.
//
// Thread safety: none; each thread has its own, merged at the end.
// Invariants: at most kSlicesMax slices, which are twice as long each time the run outgrows them.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "net/latency_histogram.h"

namespace headrace {

class Timeline {
 public:
  static constexpr std::int64_t kShortestSliceNs = 100'000'000;
  static constexpr std::size_t kSlicesMax = 240;

  struct Slice {
    static constexpr int kSignificantDigits = 2;

    std::uint64_t failed = 0;
    LatencyHistogram latency{kSignificantDigits};  // of those that did not fail
  };

  // An answer `at_ns` after the start of the run; negative is the start.
  void record(std::int64_t at_ns, std::int64_t latency_ns, bool failed);

  void merge(const Timeline& other);

  std::int64_t slice_ns() const { return slice_ns_; }
  const std::vector<Slice>& slices() const { return slices_; }

 private:
  Slice& slice_at(std::int64_t at_ns);
  void double_slices();

  std::int64_t slice_ns_ = kShortestSliceNs;
  std::vector<Slice> slices_;
};

}  // namespace headrace
