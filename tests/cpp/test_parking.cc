// SPDX-License-Identifier: Apache-2.0
//
// model_check_parking.cc has the interleavings; here are the counts, the system calls and the real futex.

#include <gtest/gtest.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "core/mailbox.h"
#include "core/parking.h"

namespace headrace {
namespace {

static_assert(alignof(Parking<>) == kCacheLine && sizeof(Parking<>) == kCacheLine);

// Counts wakes; nobody sleeps on it.
struct CountingFutex {
  static inline int wakes_of_one = 0;
  static inline int wakes_of_all = 0;

  template <typename Word>
  static void wait(Word&, std::uint32_t) {
    FAIL() << "the test would sleep for ever";
  }
  template <typename Word>
  static void wake_one(Word&) {
    ++wakes_of_one;
  }
  template <typename Word>
  static void wake_all(Word&) {
    ++wakes_of_all;
  }
};

class ParkingCalls : public testing::Test {
 protected:
  void SetUp() override { CountingFutex::wakes_of_one = CountingFutex::wakes_of_all = 0; }

  Parking<std::atomic, CountingFutex> parking_;
};

TEST_F(ParkingCalls, MakesNoSystemCallWhileNobodyIsParked) {
  parking_.wake_one();
  parking_.wake_all();
  EXPECT_EQ(CountingFutex::wakes_of_one + CountingFutex::wakes_of_all, 0);
}

TEST_F(ParkingCalls, DoesNotWakeTheSameSleeperTwice) {
  const auto ticket = parking_.prepare();
  parking_.wake_one();
  parking_.wake_one();
  parking_.wake_all();
  EXPECT_EQ(CountingFutex::wakes_of_one, 1);
  EXPECT_EQ(CountingFutex::wakes_of_all, 0);
  parking_.park(ticket);  // returns at once: the wake came before
  EXPECT_EQ(parking_.was_parked(), 0u);
}

TEST_F(ParkingCalls, WakesAsManySleepersAsThereArePushes) {
  const auto first = parking_.prepare();
  const auto second = parking_.prepare();
  parking_.wake_one();
  parking_.wake_one();
  EXPECT_EQ(CountingFutex::wakes_of_one, 2);
  parking_.park(first);
  parking_.park(second);
}

TEST_F(ParkingCalls, MakesNoSystemCallForOneWhoCancelled) {
  EXPECT_TRUE(parking_.try_cancel(parking_.prepare()));
  parking_.wake_one();
  EXPECT_EQ(CountingFutex::wakes_of_one, 0);
}

// The wake was meant for either: as long as one of them still sleeps, it is for that one.
TEST_F(ParkingCalls, LeavesTheWakeToTheOtherSleeperWhenOneCancels) {
  const auto sleeper = parking_.prepare();
  const auto canceller = parking_.prepare();
  parking_.wake_one();
  EXPECT_TRUE(parking_.try_cancel(canceller));
  parking_.park(sleeper);  // returns at once
  EXPECT_EQ(parking_.was_parked(), 0u);
}

TEST_F(ParkingCalls, KeepsNoWakeForThoseWhoComeLater) {
  parking_.wake_one();
  const auto canceller = parking_.prepare();
  parking_.wake_one();
  EXPECT_TRUE(parking_.try_cancel(canceller));  // takes the wake with it
  const auto ticket = parking_.prepare();
  EXPECT_EQ(parking_.was_parked(), 1u);
  EXPECT_TRUE(parking_.try_cancel(ticket));
}

TEST_F(ParkingCalls, MakesNoSystemCallForASleeperWhosePlaceIsBorrowed) {
  const auto sleeper = parking_.prepare();
  ASSERT_TRUE(parking_.try_borrow());
  parking_.wake_one();
  parking_.wake_all();
  EXPECT_EQ(CountingFutex::wakes_of_one + CountingFutex::wakes_of_all, 0);
  parking_.give_back();
  parking_.wake_one();
  EXPECT_EQ(CountingFutex::wakes_of_one, 1);
  parking_.park(sleeper);  // returns at once
}

TEST_F(ParkingCalls, LendsNoMorePlacesThanThereAreSleepersWhomNobodyHasCalled) {
  EXPECT_FALSE(parking_.try_borrow());
  const auto first = parking_.prepare();
  const auto second = parking_.prepare();
  parking_.wake_one();
  EXPECT_TRUE(parking_.try_borrow());
  EXPECT_FALSE(parking_.try_borrow());
  parking_.give_back();
  parking_.park(first);
  EXPECT_TRUE(parking_.try_cancel(second));
}

TEST_F(ParkingCalls, HoldsASleeperWhoseLookFoundSomethingWhileItsPlaceIsBorrowed) {
  const auto sleeper = parking_.prepare();
  ASSERT_TRUE(parking_.try_borrow());
  EXPECT_FALSE(parking_.try_cancel(sleeper));
  parking_.give_back();
  EXPECT_TRUE(parking_.try_cancel(sleeper));
}

TEST_F(ParkingCalls, WakesAllAtOnce) {
  const Parking<std::atomic, CountingFutex>::Ticket tickets[] = {parking_.prepare(), parking_.prepare(),
                                                                 parking_.prepare()};
  parking_.wake_one();
  parking_.wake_all();
  EXPECT_EQ(CountingFutex::wakes_of_all, 1);
  for (const auto& ticket : tickets) parking_.park(ticket);
  EXPECT_EQ(parking_.was_parked(), 0u);
}

struct Item {
  Item* next = nullptr;
};

// With the real futex: a wake-up that is lost leaves this test hanging.
TEST(Parking, HandsEveryItemOverWhileExecutorsSleepInBetween) {
  constexpr std::size_t kProducers = 3, kExecutors = 3, kItems = 20'000;
  Parking<> parking;
  Mailbox<Item> mailboxes[2];
  std::vector<Item> items(kProducers * kItems);
  std::atomic<std::size_t> taken{0};
  std::atomic<bool> closing{false};
  std::vector<std::thread> threads;
  for (std::size_t e = 0; e < kExecutors; ++e) {
    threads.emplace_back([&] {
      while (!closing.load()) {
        std::size_t count = 0;
        for (Mailbox<Item>& mailbox : mailboxes) {
          for (Item* item = mailbox.take_all(); item != nullptr; ++count) item = item->next;
        }
        if (count != 0) {
          if (taken.fetch_add(count) + count < items.size()) continue;
          closing.store(true);
          parking.wake_all();
        }
        const auto ticket = parking.prepare();
        if ((mailboxes[0].was_empty() && mailboxes[1].was_empty() && !closing.load()) || !parking.try_cancel(ticket))
          parking.park(ticket);
      }
    });
  }
  for (std::size_t p = 0; p < kProducers; ++p) {
    threads.emplace_back([&, p] {
      for (std::size_t i = 0; i < kItems; ++i) {
        mailboxes[i % 2].push(&items[p * kItems + i]);
        parking.wake_one();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(taken.load(), items.size());
  EXPECT_EQ(parking.was_parked(), 0u);
}

// One item at a time between two threads that both sleep: each wake is needed.
TEST(Parking, WakesASleeperForEachOfManyLoneItems) {
  constexpr int kRounds = 20'000;
  Parking<> there, back;
  std::atomic<int> sent{0}, answered{0};
  const auto wait_for = [](Parking<>& parking, const std::atomic<int>& count, int wanted) {
    while (count.load() < wanted) {
      const auto ticket = parking.prepare();
      if (count.load() < wanted || !parking.try_cancel(ticket)) parking.park(ticket);
    }
  };
  std::thread executor([&] {
    for (int round = 1; round <= kRounds; ++round) {
      wait_for(there, sent, round);
      answered.store(round);
      back.wake_one();
    }
  });
  for (int round = 1; round <= kRounds; ++round) {
    sent.store(round);
    there.wake_one();
    wait_for(back, answered, round);
  }
  executor.join();
  EXPECT_EQ(answered.load(), kRounds);
}

}  // namespace
}  // namespace headrace
