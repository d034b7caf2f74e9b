// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <utility>

#include "core/status.h"

namespace headrace {
namespace {

TEST(Status, IsOkUnlessItSaysOtherwise) {
  EXPECT_TRUE(Status().ok());
  EXPECT_EQ(Status().code(), Code::kOk);
  EXPECT_TRUE(Status().message().empty());
}

TEST(Status, HasGrpcsNumbers) {
  const std::pair<Status, int> kNumbers[] = {{Cancelled("why"), 1},         {InvalidArgument("why"), 3},
                                             {DeadlineExceeded("why"), 4},  {NotFound("why"), 5},
                                             {ResourceExhausted("why"), 8}, {FailedPrecondition("why"), 9},
                                             {Internal("why"), 13},         {Unavailable("why"), 14}};
  for (const auto& [status, number] : kNumbers) {
    EXPECT_EQ(static_cast<int>(status.code()), number);
    EXPECT_FALSE(status.ok()) << number;
    EXPECT_EQ(status.message(), "why");
  }
}

}  // namespace
}  // namespace headrace
