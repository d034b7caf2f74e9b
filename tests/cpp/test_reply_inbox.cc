// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>

#include <memory>
#include <thread>
#include <vector>

#include "fake_request.h"
#include "net/reply_inbox.h"

namespace headrace {
namespace {

class ReplyInboxTest : public testing::Test {
 protected:
  bool is_readable() const {
    pollfd event{inbox_.fileno(), POLLIN, 0};
    return ::poll(&event, 1, 0) == 1;
  }

  ReplyInbox inbox_{Descriptor(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC))};
};

TEST_F(ReplyInboxTest, WakesALoopThatSleepsAndNoOther) {
  const RequestPtr requests[] = {RequestPtr(new FakeRequest), RequestPtr(new FakeRequest)};
  inbox_.deliver(requests);
  EXPECT_FALSE(is_readable());
  EXPECT_FALSE(inbox_.try_sleep());
  ReplyInbox::Taken taken;
  inbox_.take(&taken);
  EXPECT_EQ(taken.replies.size(), 2u);
  EXPECT_TRUE(inbox_.try_sleep());
  EXPECT_FALSE(is_readable());
  inbox_.answer({7, {}, "response"});
  EXPECT_TRUE(is_readable());
  inbox_.slept();
  EXPECT_FALSE(is_readable());
  ReplyInbox::Taken answers;
  inbox_.take(&answers);
  ASSERT_EQ(answers.answers.size(), 1u);
  EXPECT_EQ(answers.answers[0].token, 7u);
}

TEST_F(ReplyInboxTest, ALoopThatSomethingElseWokeIsNotWokenAgain) {
  EXPECT_TRUE(inbox_.try_sleep());
  inbox_.slept();
  inbox_.answer({});
  EXPECT_FALSE(is_readable());
}

TEST_F(ReplyInboxTest, ACallIsSeenByALoopThatIsAwake) {
  inbox_.wake();
  EXPECT_FALSE(inbox_.try_sleep());
  EXPECT_TRUE(inbox_.try_sleep());
  inbox_.wake();
  EXPECT_TRUE(is_readable());
}

TEST_F(ReplyInboxTest, KeepsNothingOnceClosed) {
  FakeRequestPtr request(new FakeRequest);
  bool destroyed = false;
  request->on_destroyed = [&] { destroyed = true; };
  const RequestPtr requests[] = {request};
  inbox_.deliver(requests);
  inbox_.close();
  inbox_.deliver(requests);
  EXPECT_EQ(request->use_count(), 2);  // ours
  EXPECT_FALSE(destroyed);
}

TEST_F(ReplyInboxTest, NothingIsLostBetweenThreads) {
  constexpr std::size_t kEach = 20'000;
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t)
    threads.emplace_back([this] {
      for (std::size_t i = 0; i < kEach; ++i) inbox_.answer({i, {}, {}});
    });
  std::size_t taken_in_all = 0;
  while (taken_in_all < 2 * kEach) {
    if (inbox_.try_sleep()) {
      pollfd event{inbox_.fileno(), POLLIN, 0};
      ASSERT_EQ(::poll(&event, 1, static_cast<int>(std::chrono::milliseconds(kEventLimit).count())), 1);
      inbox_.slept();
    }
    ReplyInbox::Taken taken;
    inbox_.take(&taken);
    taken_in_all += taken.answers.size();
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace headrace
