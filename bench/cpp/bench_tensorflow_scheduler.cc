// SPDX-License-Identifier: Apache-2.0
//
// TensorFlow Serving's scheduler on the same way as the lane in bench_lane.cc: from submit to reply, one batch thread,
// batches of at most 64.  It is spared the gathering of inputs, which the lane does and it leaves to its caller.
// Driven twice: by one thread that never waits for a single request, as the lane is; and as tensorflow_model_server
// drives it (batching_session.cc), where the thread of each request schedules it and sleeps until it is done.

#include <benchmark/benchmark.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "../rivals/shared_batch_scheduler.h"
#include "closed_loop.h"

namespace headrace {
namespace {

using Scheduler = rivals::SharedBatchScheduler<Ticket*>;

void submit_to_reply(benchmark::State& state) {
  ClosedLoop loop(static_cast<std::size_t>(state.range(0)));
  std::atomic<std::int64_t> batches{0};
  std::atomic<std::int64_t> rows{0};
  Scheduler scheduler(Scheduler::Options{}, [&](Scheduler::Batch& batch) {
    for (int i = 0; i < batch.num_tasks(); ++i) loop.returned(batch.task(i).payload);
    loop.flush();
    batches.fetch_add(1);
    rows.fetch_add(batch.num_tasks());
  });
  loop.run(state, [&](Ticket* ticket) {
    if (!scheduler.submit(ticket)) state.SkipWithError("a request was refused");
  });
  state.counters["rows_per_batch"] = static_cast<double>(rows.load()) / static_cast<double>(batches.load());
}

struct Waiter {
  absl::Notification done;
};

void submit_to_reply_blocking(benchmark::State& state) {
  using BlockingScheduler = rivals::SharedBatchScheduler<Waiter*>;
  const auto in_flight = static_cast<std::size_t>(state.range(0));
  constexpr std::size_t kRequests = 16'384;
  BlockingScheduler scheduler(BlockingScheduler::Options{}, [&](BlockingScheduler::Batch& batch) {
    for (int i = 0; i < batch.num_tasks(); ++i) batch.task(i).payload->done.Notify();
  });
  while (state.KeepRunningBatch(kRequests)) {
    std::atomic<std::size_t> ready{0};
    std::atomic<std::size_t> left{kRequests};
    std::atomic<bool> go{false};
    std::atomic<bool> refused{false};
    std::vector<std::thread> callers;
    for (std::size_t i = 0; i < in_flight; ++i) {
      callers.emplace_back([&] {
        ready.fetch_add(1);
        go.wait(false);
        while (left.fetch_sub(1) - 1 < kRequests) {  // below zero it wraps around
          Waiter waiter;
          if (!scheduler.submit(&waiter)) {
            refused.store(true);
            return;
          }
          waiter.done.WaitForNotification();
        }
      });
    }
    while (ready.load() < in_flight) std::this_thread::yield();
    const auto start = std::chrono::steady_clock::now();
    go.store(true);
    go.notify_all();
    for (std::thread& caller : callers) caller.join();
    state.SetIterationTime(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    if (refused.load()) state.SkipWithError("a request was refused");
  }
  state.SetItemsProcessed(state.iterations());
}

// What submitting costs the caller while the batch thread waits for a full batch.
void push(benchmark::State& state) {
  constexpr std::size_t kItems = 1024;
  std::atomic<std::size_t> taken{0};
  Scheduler scheduler({.max_batch_size = kItems, .max_enqueued_batches = 2, .batch_timeout_micros = 60'000'000},
                      [&](Scheduler::Batch& batch) {
                        taken.fetch_add(static_cast<std::size_t>(batch.num_tasks()));
                        taken.notify_one();
                      });
  std::vector<Ticket> tickets(kItems);
  while (state.KeepRunningBatch(kItems)) {
    taken.store(0);
    const auto start = std::chrono::steady_clock::now();
    for (Ticket& ticket : tickets) scheduler.submit(&ticket);
    state.SetIterationTime(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    for (std::size_t n = taken.load(); n < kItems; n = taken.load()) taken.wait(n);
  }
}

BENCHMARK(submit_to_reply)
    ->Name("lane/submit_to_reply/shared_batch_scheduler")
    ->ArgName("in_flight")
    ->UseManualTime()
    ->MeasureProcessCPUTime()
    ->Arg(1)
    ->Arg(64)
    ->Arg(512);
BENCHMARK(submit_to_reply_blocking)
    ->Name("lane/submit_to_reply/shared_batch_scheduler_blocking")
    ->ArgName("in_flight")
    ->UseManualTime()
    ->MeasureProcessCPUTime()
    ->Arg(1)
    ->Arg(64)
    ->Arg(512);
BENCHMARK(push)->Name("mailbox/push/shared_batch_scheduler")->UseManualTime();

}  // namespace
}  // namespace headrace
