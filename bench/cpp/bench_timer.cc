// SPDX-License-Identifier: Apache-2.0
//
// How late the timer's thread is, in real time: the distribution over many windows of 0.2 to 3 ms.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <random>
#include <vector>

#include "core/clock.h"
#include "core/timer.h"

namespace headrace {
namespace {

class Alarm final : public TimerClient {
 public:
  explicit Alarm(const Clock& clock) : clock_(clock) {}

  // When the timer called, at or after `due_ns`.
  std::int64_t wait(Timer& timer, std::int64_t due_ns) {
    due_ns_ = due_ns;
    rang_ns_.store(0);
    timer.call_by(*this, due_ns);
    rang_ns_.wait(0);
    return rang_ns_.load();
  }

 private:
  std::int64_t on_timer(std::int64_t now_ns) override {
    const std::int64_t due_ns = due_ns_.load();
    if (now_ns < due_ns) return due_ns;
    if (rang_ns_.exchange(clock_.now_ns()) == 0) rang_ns_.notify_one();
    return kNever;
  }

  const Clock& clock_;
  std::atomic<std::int64_t> due_ns_{kNever};
  std::atomic<std::int64_t> rang_ns_{1};
};

void lateness(benchmark::State& state) {
  const SystemClock clock;
  Timer timer(clock);
  Alarm alarm(clock);
  timer.add(&alarm);
  timer.start();
  std::mt19937 random(1);
  std::uniform_int_distribution<std::int64_t> window_ns(200'000, 3'000'000);
  std::vector<std::int64_t> late_ns;
  for ([[maybe_unused]] auto iteration : state) {
    const std::int64_t due_ns = clock.now_ns() + window_ns(random);
    late_ns.push_back(alarm.wait(timer, due_ns) - due_ns);
    state.SetIterationTime(static_cast<double>(late_ns.back()) * 1e-9);
  }
  timer.remove(&alarm);
  timer.stop();
  std::sort(late_ns.begin(), late_ns.end());
  const auto at = [&](std::size_t percent) { return static_cast<double>(late_ns[late_ns.size() * percent / 100]); };
  state.counters["p50_us"] = at(50) / 1e3;
  state.counters["p99_us"] = at(99) / 1e3;
  state.counters["max_us"] = static_cast<double>(late_ns.back()) / 1e3;
}

BENCHMARK(lateness)->Name("timer/lateness")->UseManualTime()->Iterations(1000);

}  // namespace
}  // namespace headrace
