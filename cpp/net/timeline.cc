// SPDX-License-Identifier: Apache-2.0

#include "net/timeline.h"

#include <algorithm>
#include <utility>

namespace headrace {

namespace {

void merge_slice(Timeline::Slice& into, const Timeline::Slice& other) {
  into.failed += other.failed;
  into.latency.merge(other.latency);
}

}  // namespace

void Timeline::record(std::int64_t at_ns, std::int64_t latency_ns, bool failed) {
  Slice& slice = slice_at(at_ns);
  if (failed) {
    ++slice.failed;
  } else {
    slice.latency.record(latency_ns);
  }
}

void Timeline::merge(const Timeline& other) {
  while (slice_ns_ < other.slice_ns_) double_slices();
  for (std::size_t i = 0; i < other.slices_.size(); ++i) {
    merge_slice(slice_at(static_cast<std::int64_t>(i) * other.slice_ns_), other.slices_[i]);
  }
}

Timeline::Slice& Timeline::slice_at(std::int64_t at_ns) {
  at_ns = std::max<std::int64_t>(at_ns, 0);
  while (static_cast<std::size_t>(at_ns / slice_ns_) >= kSlicesMax) double_slices();
  const auto index = static_cast<std::size_t>(at_ns / slice_ns_);
  if (index >= slices_.size()) slices_.resize(index + 1);
  return slices_[index];
}

void Timeline::double_slices() {
  slice_ns_ *= 2;
  for (std::size_t i = 0; i < slices_.size(); ++i) {
    if (i % 2 == 1) {
      merge_slice(slices_[i / 2], slices_[i]);
    } else if (i > 0) {
      slices_[i / 2] = std::move(slices_[i]);
    }
  }
  slices_.resize((slices_.size() + 1) / 2);
}

}  // namespace headrace
