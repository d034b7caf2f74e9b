// SPDX-License-Identifier: Apache-2.0
//
// What a producer pays for a push and the look at Parking that follows it, with every executor awake and with one
// asleep; and how long it takes until the sleeper has the item.

#include <benchmark/benchmark.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <thread>
#include <vector>

#include "core/mailbox.h"
#include "core/parking.h"

namespace headrace {
namespace {

struct alignas(64) Item {
  Item* next = nullptr;
};

using SteadyClock = std::chrono::steady_clock;

double seconds_since(SteadyClock::time_point start) {
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

void wake_while_awake(benchmark::State& state) {
  constexpr std::size_t kItems = 1024;
  Mailbox<Item> mailbox;
  Parking<> parking;
  std::vector<Item> items(kItems);
  while (state.KeepRunningBatch(kItems)) {
    const auto start = SteadyClock::now();
    for (Item& item : items) {
      mailbox.push(&item);
      parking.wake_one();
    }
    state.SetIterationTime(seconds_since(start));
    benchmark::DoNotOptimize(mailbox.take_all());
  }
}

// An executor that takes items and parks.
class Sleeper {
 public:
  Sleeper() : thread_([this] { run(); }) {}

  ~Sleeper() {
    ending_.store(true);
    parking_.wake_one();
    thread_.join();
  }

  // Returns once the executor is in the kernel: parked, and given the time to get there.
  void wait_until_asleep() {
    while (parking_.was_parked() == 0) std::this_thread::yield();
    const auto parked = SteadyClock::now();
    while (seconds_since(parked) < 50e-6) std::this_thread::yield();
  }

  void push(Item* item) {
    mailbox_.push(item);
    parking_.wake_one();
  }

  void wait_until_taken(std::size_t items) {
    while (taken_.load() < items) {
    }
  }

 private:
  void run() {
    while (!ending_.load()) {
      for (Item* item = mailbox_.take_all(); item != nullptr; item = item->next) taken_.fetch_add(1);
      auto ticket = parking_.prepare();
      if ((mailbox_.was_empty() && !ending_.load()) || !parking_.try_cancel(ticket)) parking_.park(ticket);
    }
  }

  Mailbox<Item> mailbox_;
  Parking<> parking_;
  std::atomic<std::size_t> taken_{0};
  std::atomic<bool> ending_{false};
  std::thread thread_;
};

enum class Until { kPushed, kTaken };

template <Until until>
void wake_while_parked(benchmark::State& state) {
  Sleeper sleeper;
  Item item;
  std::size_t pushed = 0;
  for ([[maybe_unused]] auto iteration : state) {
    sleeper.wait_until_asleep();
    const auto start = SteadyClock::now();
    sleeper.push(&item);
    if (until == Until::kPushed) state.SetIterationTime(seconds_since(start));
    sleeper.wait_until_taken(++pushed);
    if (until == Until::kTaken) state.SetIterationTime(seconds_since(start));
  }
}

BENCHMARK(wake_while_awake)->Name("parking/push_and_wake/awake")->UseManualTime();
BENCHMARK(wake_while_parked<Until::kPushed>)->Name("parking/push_and_wake/parked")->UseManualTime()->Iterations(5000);
BENCHMARK(wake_while_parked<Until::kTaken>)->Name("parking/push_until_taken/parked")->UseManualTime()->Iterations(5000);

}  // namespace
}  // namespace headrace
