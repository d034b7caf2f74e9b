// SPDX-License-Identifier: Apache-2.0
//
// The mailbox beside other queues: the price of a push alone, and of an item on its way from 1, 2 or 4 producers to
// one taker.  Time is per item.

#include <benchmark/benchmark.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <thread>
#include <vector>

#include "../rivals/boost_lockfree.h"
#include "../rivals/concurrentqueue.h"
#include "../rivals/mutex_queue.h"
#include "core/mailbox.h"

namespace headrace {
namespace {

// As far from its neighbours as a request is.
struct alignas(64) Item {
  Item* next = nullptr;
};

// The mailbox with the rivals' interface.
template <typename T>
class OurMailbox {
 public:
  void push(T* item) { mailbox_.push(item); }

  std::size_t take() {
    std::size_t taken = 0;
    for (T* item = mailbox_.take_all(); item != nullptr; item = item->next) ++taken;
    return taken;
  }

 private:
  Mailbox<T> mailbox_;
};

using SteadyClock = std::chrono::steady_clock;

double seconds_since(SteadyClock::time_point start) {
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

template <template <typename> class Queue>
void push(benchmark::State& state) {
  constexpr std::size_t kItems = 1024;
  Queue<Item> queue;
  std::vector<Item> items(kItems);
  while (state.KeepRunningBatch(kItems)) {
    const auto start = SteadyClock::now();
    for (Item& item : items) queue.push(&item);
    state.SetIterationTime(seconds_since(start));
    for (std::size_t taken = 0; taken < kItems;) taken += queue.take();
  }
}

template <template <typename> class Queue>
void push_and_take(benchmark::State& state) {
  constexpr std::size_t kItems = 100'000;
  const auto producers = static_cast<std::size_t>(state.range(0));
  std::vector<std::vector<Item>> items(producers, std::vector<Item>(kItems / producers));
  while (state.KeepRunningBatch(kItems)) {
    Queue<Item> queue;
    std::atomic<std::size_t> ready{0};
    std::atomic<bool> go{false};
    std::vector<std::thread> threads;
    for (std::size_t p = 0; p < producers; ++p) {
      threads.emplace_back([&, p] {
        ready.fetch_add(1);
        go.wait(false);
        for (Item& item : items[p]) queue.push(&item);
      });
    }
    while (ready.load() < producers) std::this_thread::yield();
    const auto start = SteadyClock::now();
    go.store(true);
    go.notify_all();
    for (std::size_t left = kItems; left > 0;) {
      const std::size_t taken = queue.take();
      left -= taken;
      if (taken == 0) std::this_thread::yield();
    }
    state.SetIterationTime(seconds_since(start));
    for (std::thread& thread : threads) thread.join();
  }
}

#define HEADRACE_QUEUE(Queue, name)                                    \
  BENCHMARK(push<Queue>)->Name("mailbox/push/" name)->UseManualTime(); \
  BENCHMARK(push_and_take<Queue>)                                      \
      ->Name("mailbox/push_and_take/" name)                            \
      ->ArgName("producers")                                           \
      ->UseManualTime()                                                \
      ->Arg(1)                                                         \
      ->Arg(2)                                                         \
      ->Arg(4)

HEADRACE_QUEUE(OurMailbox, "headrace");
HEADRACE_QUEUE(rivals::ConcurrentQueue, "moodycamel");
HEADRACE_QUEUE(rivals::BoostLockfree, "boost_lockfree");
HEADRACE_QUEUE(rivals::MutexQueue, "mutex");

}  // namespace
}  // namespace headrace
