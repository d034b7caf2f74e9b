// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "net/handler_queue.h"

namespace headrace {
namespace {

// What the calls of a test were answered with, in order.
class Answers {
 public:
  std::unique_ptr<HandlerCall> call(std::string_view text) {
    MessagePtr message = Message::try_allocate(text.size(), budget_, nullptr);
    text.copy(reinterpret_cast<char*>(message->data()), text.size());
    return std::make_unique<HandlerCall>("/a.B/C", std::move(message),
                                         [this](const Status& status, std::string_view response) {
                                           std::lock_guard lock(mutex_);
                                           codes_.push_back(status.code());
                                           responses_.emplace_back(response);
                                         });
  }
  std::vector<Code> codes() const {
    std::lock_guard lock(mutex_);
    return codes_;
  }
  std::vector<std::string> responses() const {
    std::lock_guard lock(mutex_);
    return responses_;
  }

 private:
  const std::shared_ptr<ByteBudget> budget_ = std::make_shared<ByteBudget>(1 << 20);
  mutable std::mutex mutex_;
  std::vector<Code> codes_;
  std::vector<std::string> responses_;
};

TEST(HandlerCall, IsAnsweredOnce) {
  Answers answers;
  auto call = answers.call("a");
  call->answer({}, "first");
  call->answer(NotFound("second"), {});
  call = nullptr;
  EXPECT_EQ(answers.codes(), (std::vector{Code::kOk}));
  EXPECT_EQ(answers.responses(), (std::vector<std::string>{"first"}));
}

TEST(HandlerCall, ThatIsDroppedIsAnsweredWithInternal) {
  Answers answers;
  answers.call("a") = nullptr;
  EXPECT_EQ(answers.codes(), (std::vector{Code::kInternal}));
}

TEST(HandlerQueue, GivesCallsInTheirOrder) {
  Answers answers;
  HandlerQueue queue(2);
  for (const char* message : {"a", "b"}) {
    auto call = answers.call(message);
    ASSERT_TRUE(queue.push(call).ok());
    EXPECT_EQ(call, nullptr);
  }
  EXPECT_EQ(queue.next()->message(), "a");
  EXPECT_EQ(queue.next()->message(), "b");
}

TEST(HandlerQueue, LeavesWhatIsTooManyToTheCaller) {
  Answers answers;
  HandlerQueue queue(1);
  auto first = answers.call("a"), second = answers.call("b");
  ASSERT_TRUE(queue.push(first).ok());
  const Status status = queue.push(second);
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_EQ(status.message(), "1 control calls are waiting already");
  EXPECT_NE(second, nullptr);
  EXPECT_TRUE(answers.codes().empty());
}

TEST(HandlerQueue, AnswersWhatWaitsWhenItCloses) {
  Answers answers;
  HandlerQueue queue(4);
  auto taken_before = answers.call("a"), waiting = answers.call("b"), late = answers.call("c");
  ASSERT_TRUE(queue.push(taken_before).ok());
  const std::unique_ptr<HandlerCall> taken = queue.next();
  ASSERT_TRUE(queue.push(waiting).ok());
  queue.close();
  EXPECT_EQ(answers.codes(), (std::vector{Code::kUnavailable}));
  EXPECT_EQ(queue.next(), nullptr);
  EXPECT_EQ(queue.push(late).code(), Code::kUnavailable);
  taken->answer({}, "done");
  EXPECT_EQ(answers.responses().back(), "done");
}

TEST(HandlerQueue, WakesEveryThreadThatWaits) {
  Answers answers;
  HandlerQueue queue(1000);
  std::vector<std::future<void>> threads;
  for (int i = 0; i < 3; ++i)
    threads.push_back(std::async(std::launch::async, [&] {
      while (const auto call = queue.next()) call->answer({}, call->message());
    }));
  for (int i = 0; i < 1000; ++i) {
    auto call = answers.call("a");
    ASSERT_TRUE(queue.push(call).ok());
  }
  while (answers.codes().size() < 1000) std::this_thread::yield();
  queue.close();
  for (auto& thread : threads) thread.get();
  EXPECT_EQ(answers.responses(), std::vector<std::string>(1000, "a"));
}

}  // namespace
}  // namespace headrace
