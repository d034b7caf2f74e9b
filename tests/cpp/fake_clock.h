// SPDX-License-Identifier: Apache-2.0
//
// FakeClock: time that moves only when a test says so.
//
// Thread safety: any thread.

#pragma once

#include <atomic>
#include <cstdint>

#include "core/clock.h"

namespace headrace {

class FakeClock final : public Clock {
 public:
  explicit FakeClock(std::int64_t now_ns = 1'000'000'000) : now_ns_(now_ns) {}

  std::int64_t now_ns() const override { return now_ns_.load(); }
  void advance_ns(std::int64_t wait_ns) { now_ns_.fetch_add(wait_ns); }
  void set_ns(std::int64_t now_ns) { now_ns_.store(now_ns); }

 private:
  std::atomic<std::int64_t> now_ns_;
};

}  // namespace headrace
