// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <cstdint>
#include <ctime>

#include "core/clock.h"

namespace headrace {
namespace {

TEST(Clock, AddsAWaitAndNeverOverflows) {
  EXPECT_EQ(after_ns(5, 3), 8);
  EXPECT_EQ(after_ns(5, 0), 5);
  EXPECT_EQ(after_ns(5, kNever), kNever);
  EXPECT_EQ(after_ns(kNever, 1), kNever);
  EXPECT_EQ(after_ns(5, kNever - 6), kNever - 1);
  EXPECT_EQ(after_ns(5, kNever - 5), kNever);
  EXPECT_EQ(after_ns(5, kNever - 4), kNever);
}

// The timer hands its times to a futex, which reads this clock.
TEST(Clock, OfTheSystemIsTheKernelsMonotonicOne) {
  const auto kernel_ns = [] {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
  };
  const SystemClock clock;
  const std::int64_t before_ns = kernel_ns();
  const std::int64_t now_ns = clock.now_ns();
  EXPECT_LE(before_ns, now_ns);
  EXPECT_LE(now_ns, kernel_ns());
}

}  // namespace
}  // namespace headrace
