// SPDX-License-Identifier: Apache-2.0
//
// Python's seconds as the core's nanoseconds.

#pragma once

#include <cstdint>
#include <optional>

#include "core/clock.h"

namespace headrace {

// A length of time; negative ones and NaN are 0, what is too long for the core is kNever.
inline std::int64_t seconds_ns(double seconds) {
  if (!(seconds > 0)) return 0;
  constexpr double kNsPerSecond = 1e9;
  return seconds * kNsPerSecond >= static_cast<double>(kNever) ? kNever
                                                               : static_cast<std::int64_t>(seconds * kNsPerSecond);
}

// The point in time `timeout` seconds from now; kNever without one.
inline std::int64_t deadline_in(std::optional<double> timeout) {
  return timeout ? after_ns(SystemClock().now_ns(), seconds_ns(*timeout)) : kNever;
}

}  // namespace headrace
