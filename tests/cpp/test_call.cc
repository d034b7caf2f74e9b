// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <string>

#include "http2_client.h"
#include "net/call.h"

namespace headrace {
namespace {

// The table never looks at a connection.
Http2Connection& some_connection() {
  static int place;
  return reinterpret_cast<Http2Connection&>(place);
}

TEST(CallTable, FindsACallByItsToken) {
  CallTable calls;
  Call& first = calls.add(some_connection(), 1);
  Call& second = calls.add(some_connection(), 3);
  EXPECT_NE(first.token, second.token);
  EXPECT_EQ(calls.find(first.token), &first);
  EXPECT_EQ(calls.find(second.token), &second);
  EXPECT_EQ(calls.find(12345), nullptr);
  EXPECT_EQ(calls.size(), 2u);
}

TEST(CallTable, NeverFindsACallByTheTokenOfOneBefore) {
  CallTable calls;
  std::uint64_t before = 0;
  for (int i = 0; i < 100; ++i) {
    Call& call = calls.add(some_connection(), 1);
    const std::uint64_t token = call.token;
    EXPECT_EQ(calls.find(before), nullptr);
    call.backlog = "left over";
    calls.release(call);
    EXPECT_EQ(calls.find(token), nullptr);
    before = token;
  }
  EXPECT_EQ(calls.add(some_connection(), 1).backlog, "");
  EXPECT_EQ(calls.size(), 1u);
}

TEST(OutgoingMessage, IsTakenInPartsOfAnySize) {
  const std::string message = "some message";
  for (std::size_t size = 1; size < 20; ++size) {
    OutgoingMessage outgoing(message, true);
    std::string out;
    while (outgoing.left != 0) outgoing.append_to(&out, std::min(size, outgoing.left));
    EXPECT_EQ(out, framed(message, true));
  }
}

}  // namespace
}  // namespace headrace
