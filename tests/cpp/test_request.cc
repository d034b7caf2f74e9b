// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "core/request.h"
#include "fake_request.h"

namespace headrace {
namespace {

TEST(Request, RunsOnceAndIsAnsweredOnce) {
  const FakeRequestPtr request(new FakeRequest());
  EXPECT_FALSE(request->was_answered());
  EXPECT_TRUE(request->claim_run());
  EXPECT_FALSE(request->claim_run());
  EXPECT_FALSE(request->was_answered());
  Request::State from;
  EXPECT_TRUE(request->claim_answer(&from));
  EXPECT_EQ(from, Request::State::kRunning);
  EXPECT_TRUE(request->was_answered());
  EXPECT_FALSE(request->claim_answer(&from));
  EXPECT_EQ(from, Request::State::kAnswered);
  EXPECT_FALSE(request->claim_run());
}

TEST(Request, DoesNotRunOnceItIsAnswered) {
  const FakeRequestPtr request(new FakeRequest());
  Request::State from;
  EXPECT_TRUE(request->claim_answer(&from));
  EXPECT_EQ(from, Request::State::kWaiting);
  EXPECT_FALSE(request->claim_run());
  EXPECT_TRUE(request->was_answered());
}

TEST(Request, HasItsInputsBackAtOnceWhereItNeverRan) {
  const FakeRequestPtr request(new FakeRequest());
  request->inputs_lent = true;
  EXPECT_TRUE(request->inputs_were_free());
  Request::State from;
  ASSERT_TRUE(request->claim_answer(&from));
  EXPECT_TRUE(request->inputs_were_free());
  request->wait_inputs_free();
}

// Who was answered at its deadline, while its rows were being copied.
TEST(Request, HasItsInputsBackOnceTheyAreGathered) {
  const FakeRequestPtr request(new FakeRequest());
  request->inputs_lent = true;
  ASSERT_TRUE(request->claim_run());
  Request::State from;
  ASSERT_TRUE(request->claim_answer(&from));
  EXPECT_FALSE(request->inputs_were_free());
  int rows = 1;
  std::thread executor([&] {
    rows = 2;
    request->inputs_gathered();
  });
  request->wait_inputs_free();
  EXPECT_EQ(rows, 2);
  EXPECT_TRUE(request->was_answered());
  executor.join();
}

TEST(Request, HasOneWinnerWhereManyAnswer) {
  constexpr int kThreads = 4, kRequests = 2'000;
  std::vector<FakeRequestPtr> requests;
  for (int i = 0; i < kRequests; ++i) requests.emplace_back(new FakeRequest());
  std::atomic<int> answers{0}, runs{0}, runs_before{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (const FakeRequestPtr& request : requests) {
        runs += request->claim_run() ? 1 : 0;
        Request::State from;
        if (!request->claim_answer(&from)) continue;
        ++answers;
        runs_before += from == Request::State::kRunning ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(answers, kRequests);
  EXPECT_EQ(runs, runs_before);  // what was answered while it waited never ran
}

}  // namespace
}  // namespace headrace
