// SPDX-License-Identifier: Apache-2.0
//
// ByteBudget: how much memory the messages of all connections may take together, and what is kept of it for the next.
// ByteCharge: what one of them takes of it, given back with its owner.
//
// Thread safety: a budget's functions from any thread; a charge is a value.  Progress: lock-free, but for the pool.

#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <string>

#include "core/status.h"
#include "net/buffer_pool.h"

namespace headrace {

class ByteBudget {
 public:
  explicit ByteBudget(std::size_t bytes_max) : bytes_max_(bytes_max), buffers_(std::min(kKeptMax, bytes_max / 4)) {}

  // Whether there was room; what was taken is to be given back.  Relaxed: the counter orders nothing.
  [[nodiscard]] bool try_take(std::size_t bytes) {
    const std::size_t before = taken_.fetch_add(bytes, std::memory_order_relaxed);
    if (before <= bytes_max_ && bytes <= bytes_max_ - before) return true;
    give_back(bytes);
    return false;
  }
  void give_back(std::size_t bytes) { taken_.fetch_sub(bytes, std::memory_order_relaxed); }

  // What to answer where there was no room.
  Status refusal(std::size_t bytes) const {
    return ResourceExhausted("the messages of all connections hold " + std::to_string(was_taken()) +
                             " bytes, and with " + std::to_string(bytes) + " more they would pass the limit of " +
                             std::to_string(bytes_max_) + " (--grpc_buffered_bytes_max)");
  }

  std::size_t was_taken() const { return taken_.load(std::memory_order_relaxed); }

  // Where messages come from and go to; what it keeps is not taken.
  BufferPool& buffers() { return buffers_; }

 private:
  static constexpr std::size_t kKeptMax = 64 << 20;

  const std::size_t bytes_max_;
  BufferPool buffers_;
  std::atomic<std::size_t> taken_{0};
};

class ByteCharge {
 public:
  explicit ByteCharge(ByteBudget& budget) : budget_(budget) {}
  ByteCharge(const ByteCharge&) = delete;
  ByteCharge& operator=(const ByteCharge&) = delete;
  ~ByteCharge() { budget_.give_back(bytes_); }

  // RESOURCE_EXHAUSTED where there is no room for so many in all.
  Status grow_to(std::size_t bytes) {
    if (bytes <= bytes_) return {};
    if (!budget_.try_take(bytes - bytes_)) return budget_.refusal(bytes - bytes_);
    bytes_ = bytes;
    return {};
  }

 private:
  ByteBudget& budget_;
  std::size_t bytes_ = 0;
};

}  // namespace headrace
