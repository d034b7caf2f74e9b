// SPDX-License-Identifier: Apache-2.0
//
// Clock: monotonic time in nanoseconds, injected so that tests own it.
//
// Thread safety: now_ns() from any thread.

#pragma once

#include <chrono>
#include <cstdint>
#include <limits>

namespace headrace {

// A point in time that never comes: no deadline.
inline constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

class Clock {
 public:
  virtual ~Clock() = default;
  virtual std::int64_t now_ns() const = 0;
};

// CLOCK_MONOTONIC, the clock that the timer's futex sleeps on.
class SystemClock final : public Clock {
 public:
  std::int64_t now_ns() const override {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }
};

// `wait_ns` after `from_ns`, or kNever where that would overflow.
inline std::int64_t after_ns(std::int64_t from_ns, std::int64_t wait_ns) {
  return wait_ns >= kNever - from_ns ? kNever : from_ns + wait_ns;
}

}  // namespace headrace
