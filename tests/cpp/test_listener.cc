// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <string>

#include "net/listener.h"

namespace headrace {
namespace {

TEST(Listener, TakesAFreePort) {
  int port = 0;
  Descriptor socket;
  ASSERT_TRUE(listen_on("127.0.0.1", &port, &socket).ok());
  EXPECT_GT(port, 0);
  EXPECT_TRUE(socket);
}

TEST(Listener, RefusesATakenPort) {
  int port = 0;
  Descriptor first, second;
  ASSERT_TRUE(listen_on("127.0.0.1", &port, &first).ok());
  const Status status = listen_on("127.0.0.1", &port, &second);
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_EQ(status.message(), "port " + std::to_string(port) + ": address already in use; choose another with port=");
  first = Descriptor();
  EXPECT_TRUE(listen_on("127.0.0.1", &port, &second).ok());
}

TEST(Listener, RefusesAHostThatIsNotThisMachine) {
  for (const char* host : {"not an address", "192.0.2.1"}) {
    int port = 0;
    Descriptor socket;
    const Status status = listen_on(host, &port, &socket);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << host;
    EXPECT_EQ(status.message(), "host '" + std::string(host) + "': not an address of this machine");
  }
}

}  // namespace
}  // namespace headrace
