// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "net/health_table.h"

namespace headrace {
namespace {

const std::string kOfAll;  // the request that names no service
const std::string kOfA =
    "\x0A\x01"
    "a";
const std::string kServingResponse = "\x08\x01";
const std::string kNotServingResponse = "\x08\x02";
const std::string kServiceUnknownResponse = "\x08\x03";

HealthTable::Watcher note_in(std::vector<std::string>* told) {
  return [told](std::string_view response) { told->emplace_back(response); };
}

TEST(HealthTable, SaysHowAServiceIs) {
  HealthTable table;
  table.set("", Serving::kServing);
  table.set("a", Serving::kNotServing);
  std::string response;
  ASSERT_TRUE(table.check(kOfAll, &response).ok());
  EXPECT_EQ(response, kServingResponse);
  ASSERT_TRUE(table.check(kOfA, &response).ok());
  EXPECT_EQ(response, kNotServingResponse);
  table.set("a", Serving::kUnknown);
  ASSERT_TRUE(table.check(kOfA, &response).ok());
  EXPECT_EQ(response, "");
}

TEST(HealthTable, KnowsOnlyWhatWasSet) {
  HealthTable table;
  table.set("", Serving::kServing);
  std::string response;
  const Status status = table.check(kOfA, &response);
  EXPECT_EQ(status.code(), Code::kNotFound);
  EXPECT_EQ(status.message(), "no service \"a\" here");
}

TEST(HealthTable, TakesTheLastNameAndLetsUnknownFieldsPass) {
  HealthTable table;
  table.set("a", Serving::kServing);
  std::string response;
  EXPECT_TRUE(table
                  .check("\x0A\x01"
                         "b"
                         "\x10\x05" +
                             kOfA,
                         &response)
                  .ok());
  EXPECT_EQ(response, kServingResponse);
}

TEST(HealthTable, RefusesWhatIsNoRequest) {
  HealthTable table;
  table.set("", Serving::kServing);
  for (const std::string request : {"\x0A",
                                    "\x0A\x02"
                                    "a",
                                    "\x07", "\x0A\x01\xFF"}) {
    std::string response;
    std::uint64_t number = 0;
    EXPECT_EQ(table.check(request, &response).code(), Code::kInvalidArgument);
    EXPECT_EQ(table
                  .watch(
                      request, [](std::string_view) { FAIL(); }, &number)
                  .code(),
              Code::kInvalidArgument);
  }
}

TEST(HealthTable, TellsAWatcherNowAndAtEveryChange) {
  HealthTable table;
  table.set("a", Serving::kNotServing);
  std::vector<std::string> told;
  std::uint64_t number = 0;
  ASSERT_TRUE(table.watch(kOfA, note_in(&told), &number).ok());
  EXPECT_EQ(told, std::vector{kNotServingResponse});
  table.set("a", Serving::kServing);
  table.set("a", Serving::kServing);  // no change
  table.set("", Serving::kNotServing);
  table.set("a", Serving::kNotServing);
  EXPECT_EQ(told, (std::vector{kNotServingResponse, kServingResponse, kNotServingResponse}));
}

TEST(HealthTable, TellsOfAServiceThatComesToBe) {
  HealthTable table;
  std::vector<std::string> told;
  std::uint64_t number = 0;
  ASSERT_TRUE(table.watch(kOfA, note_in(&told), &number).ok());
  table.set("a", Serving::kUnknown);
  table.set("a", Serving::kServing);
  EXPECT_EQ(told, (std::vector<std::string>{kServiceUnknownResponse, "", kServingResponse}));
}

TEST(HealthTable, TellsNobodyWhoHasEnded) {
  HealthTable table;
  std::vector<std::string> told, told_other;
  std::uint64_t number = 0, other = 0;
  ASSERT_TRUE(table.watch(kOfA, note_in(&told), &number).ok());
  ASSERT_TRUE(table.watch(kOfA, note_in(&told_other), &other).ok());
  EXPECT_NE(number, other);
  table.unwatch(number);
  table.unwatch(number);
  table.set("a", Serving::kServing);
  EXPECT_EQ(told.size(), 1u);
  EXPECT_EQ(told_other.size(), 2u);
}

TEST(HealthTable, IsChangedAndWatchedByManyAtOnce) {
  HealthTable table;
  std::atomic<int> told{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&table, &told, i] {
      for (int turn = 0; turn < 200; ++turn) {
        std::uint64_t number = 0;
        EXPECT_TRUE(table
                        .watch(
                            kOfA, [&told](std::string_view) { ++told; }, &number)
                        .ok());
        table.set("a", (turn + i) % 2 == 0 ? Serving::kServing : Serving::kNotServing);
        table.unwatch(number);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  const int told_before = told;
  EXPECT_GE(told_before, 800);
  table.set("a", Serving::kServiceUnknown);
  EXPECT_EQ(told, told_before);
}

}  // namespace
}  // namespace headrace
