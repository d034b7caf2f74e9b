// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <thread>
#include <vector>

#include "core/mailbox.h"

namespace headrace {
namespace {

struct Item {
  Item* next = nullptr;
  std::size_t producer = 0;
  std::size_t number = 0;
};

TEST(Mailbox, GivesBackWhatWasPushedOldestFirst) {
  Mailbox<Item> mailbox;
  Item items[3];
  for (Item& item : items) mailbox.push(&item);
  EXPECT_FALSE(mailbox.was_empty());
  Item* taken = mailbox.take_all();
  for (Item& item : items) {
    ASSERT_EQ(taken, &item);
    taken = taken->next;
  }
  EXPECT_EQ(taken, nullptr);
  EXPECT_TRUE(mailbox.was_empty());
}

TEST(Mailbox, GivesNothingWhenEmpty) {
  Mailbox<Item> mailbox;
  EXPECT_TRUE(mailbox.was_empty());
  EXPECT_EQ(mailbox.take_all(), nullptr);
}

TEST(Mailbox, TakesAnItemAgainThatWasTakenOnce) {
  Mailbox<Item> mailbox;
  Item first, second;
  mailbox.push(&first);
  mailbox.push(&second);
  ASSERT_EQ(mailbox.take_all(), &first);
  mailbox.push(&second);  // its link still says that `first` came before
  EXPECT_EQ(mailbox.take_all(), &second);
  EXPECT_EQ(second.next, nullptr);
}

// Whatever the interleaving, every item arrives once and each producer's items in its order.
TEST(Mailbox, LosesDuplicatesAndReordersNothingUnderContention) {
  constexpr std::size_t kProducers = 3, kItems = 50'000;
  Mailbox<Item> mailbox;
  std::vector<std::vector<Item>> items(kProducers, std::vector<Item>(kItems));
  std::vector<std::thread> producers;
  for (std::size_t p = 0; p < kProducers; ++p) {
    producers.emplace_back([&, p] {
      for (std::size_t i = 0; i < kItems; ++i) {
        items[p][i].producer = p;
        items[p][i].number = i;
        mailbox.push(&items[p][i]);
      }
    });
  }
  std::vector<std::size_t> expected(kProducers, 0);
  for (std::size_t taken = 0; taken < kProducers * kItems;) {
    for (Item* item = mailbox.take_all(); item != nullptr; item = item->next, ++taken)
      ASSERT_EQ(item->number, expected[item->producer]++);
  }
  for (std::thread& producer : producers) producer.join();
  EXPECT_TRUE(mailbox.was_empty());
}

// Executors empty the same mailbox: each item goes to exactly one of them.
TEST(Mailbox, GivesEachItemToOneOfSeveralTakers) {
  constexpr std::size_t kProducers = 2, kTakers = 2, kItems = 30'000;
  Mailbox<Item> mailbox;
  std::vector<std::vector<Item>> items(kProducers, std::vector<Item>(kItems));
  std::vector<std::vector<std::atomic<int>>> seen(kProducers);
  for (auto& row : seen) row = std::vector<std::atomic<int>>(kItems);
  std::atomic<std::size_t> taken{0};
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < kTakers; ++t) {
    threads.emplace_back([&] {
      while (taken.load() < kProducers * kItems) {
        for (Item* item = mailbox.take_all(); item != nullptr;) {
          Item* const next = item->next;
          seen[item->producer][item->number].fetch_add(1);
          taken.fetch_add(1);
          item = next;
        }
      }
    });
  }
  for (std::size_t p = 0; p < kProducers; ++p) {
    threads.emplace_back([&, p] {
      for (std::size_t i = 0; i < kItems; ++i) {
        items[p][i].producer = p;
        items[p][i].number = i;
        mailbox.push(&items[p][i]);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& row : seen)
    for (const std::atomic<int>& count : row) ASSERT_EQ(count.load(), 1);
}

}  // namespace
}  // namespace headrace
