// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <string>

#include "net/bench_report.h"

namespace headrace {
namespace {

TEST(BenchReport, MergesTheCountsOfThreads) {
  BenchReport one;
  one.by_code[0] = 3;
  one.by_code[5] = 1;
  one.texts[5] = "first";
  one.latency.record(10);
  one.lateness.record(1);
  one.timeline.record(0, 10, false);
  one.warm_up = 2;
  one.last_answer_ns = 7;
  BenchReport two;
  two.by_code[5] = 4;
  two.texts[5] = "second";
  two.by_code[14] = 1;
  two.texts[14] = "gone";
  two.latency.record(30);
  two.timeline.record(0, 30, false);
  two.unsent = 5;
  two.unanswered = 6;
  two.last_answer_ns = 3;
  one.merge(two);
  EXPECT_EQ(one.by_code[0], 3u);
  EXPECT_EQ(one.by_code[5], 5u);
  EXPECT_EQ(one.by_code[14], 1u);
  EXPECT_EQ(one.texts[5], "first");
  EXPECT_EQ(one.texts[14], "gone");
  EXPECT_EQ(one.latency.count(), 2u);
  EXPECT_EQ(one.lateness.count(), 1u);
  EXPECT_EQ(one.timeline.slices().at(0).latency.max_ns(), 30);
  EXPECT_EQ(one.warm_up, 2u);
  EXPECT_EQ(one.unsent, 5u);
  EXPECT_EQ(one.unanswered, 6u);
  EXPECT_EQ(one.last_answer_ns, 7);
}

TEST(BenchReport, CountsEachAnswerOfEachMessage) {
  BenchReport one;
  EXPECT_TRUE(one.add_answer(0, "a", 1));
  EXPECT_TRUE(one.add_answer(2, "a", 1));
  EXPECT_TRUE(one.add_answer(0, "b", 1));
  EXPECT_TRUE(one.add_answer(0, "a", 2));
  BenchReport two;
  EXPECT_TRUE(two.add_answer(0, "b", 5));
  two.answers_dropped = 1;
  one.merge(two);
  ASSERT_EQ(one.answers.size(), 3u);
  EXPECT_EQ(one.answers[0], (BenchReport::Answers{{"a", 3}, {"b", 6}}));
  EXPECT_EQ(one.answers[1], BenchReport::Answers{});
  EXPECT_EQ(one.answers[2], (BenchReport::Answers{{"a", 1}}));
  EXPECT_EQ(one.answers_dropped, 1u);
}

TEST(BenchReport, HasRoomForSoManyAnswersAndCountsTheRest) {
  BenchReport one;
  for (int i = 0; i < 64; ++i) EXPECT_TRUE(one.add_answer(0, std::to_string(i), 1));
  EXPECT_FALSE(one.add_answer(0, "64", 1));
  EXPECT_TRUE(one.add_answer(0, "63", 1));
  EXPECT_TRUE(one.add_answer(1, "64", 1));
  BenchReport two;
  EXPECT_TRUE(two.add_answer(0, "other", 7));
  one.merge(two);
  EXPECT_EQ(one.answers_dropped, 7u);
  EXPECT_EQ(one.answers[0].size(), 64u);
}

}  // namespace
}  // namespace headrace
