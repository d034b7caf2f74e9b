// SPDX-License-Identifier: Apache-2.0
//
// From submit to reply through a lane whose model does nothing, one executor, batches of at most 64 rows; and the
// floor, where every request is answered on the spot.  bench_tensorflow_scheduler.cc does the same with TensorFlow
// Serving's scheduler.

#include <benchmark/benchmark.h>

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "closed_loop.h"
#include "core/clock.h"
#include "core/timer.h"
#include "model.h"

namespace headrace {
namespace {

constexpr std::int64_t kMaxBatchSize = 64;

// Answers with its inputs.
class EchoRunner final : public Runner {
 public:
  Status run(const Batch& batch, Outputs* outputs) override {
    outputs->tensors.assign(batch.inputs().begin(), batch.inputs().end());
    outputs->owner = batch.slab();
    return {};
  }
};

// One row of one float.
class TicketRequest final : public Request {
 public:
  explicit TicketRequest(Ticket* ticket) : ticket_(ticket) {
    inputs.push_back({.dtype = DType::kFloat, .shape = {1, 1}, .data = value_.data(), .bytes = value_.size()});
  }

  Status write_reply(std::span<const TensorView> outputs) override {
    benchmark::DoNotOptimize(outputs.front().data);
    return {};
  }

  Ticket* ticket() const { return ticket_; }

 private:
  Ticket* ticket_;
  std::array<std::byte, sizeof(float)> value_{};
};

class LoopSink final : public ReplySink {
 public:
  explicit LoopSink(ClosedLoop& loop) : loop_(loop) {}

  void deliver(std::span<const RequestPtr> answered) noexcept override {
    for (const RequestPtr& request : answered) loop_.returned(static_cast<TicketRequest&>(*request).ticket());
    loop_.flush();
  }

 private:
  ClosedLoop& loop_;
};

void submit_to_reply(benchmark::State& state) {
  ClosedLoop loop(static_cast<std::size_t>(state.range(0)));
  LoopSink sink(loop);
  const SystemClock clock;
  const auto timer = std::make_shared<Timer>(clock);
  timer->start();
  const auto model = std::make_shared<Model>("bench", 1, timer, clock);
  LaneOptions options;
  options.policy.max_batch_size = kMaxBatchSize;
  Signature signature{.name = "serving_default",
                      .inputs = {{.name = "x", .dtype = DType::kFloat, .shape = Shape{-1, 1}, .tensor_name = ""}},
                      .outputs = {{.name = "y", .dtype = DType::kFloat, .shape = Shape{-1, 1}, .tensor_name = ""}}};
  Lane& lane = model->add_lane(std::move(signature), options, std::make_shared<EchoRunner>(), nullptr);
  model->start(1);
  loop.run(state, [&](Ticket* ticket) {
    const RequestPtr request(new TicketRequest(ticket));
    request->sink = &sink;
    if (!lane.submit(request).ok()) state.SkipWithError("a request was refused");
  });
  state.counters["rows_per_batch"] =
      static_cast<double>(lane.stats().batch_rows.value()) / static_cast<double>(lane.stats().batches.value());
  model->close(kNever);
  timer->stop();
}

void floor(benchmark::State& state) {
  ClosedLoop loop(static_cast<std::size_t>(state.range(0)));
  loop.run(state, [&](Ticket* ticket) {
    loop.returned(ticket);
    loop.flush();
  });
}

BENCHMARK(submit_to_reply)
    ->Name("lane/submit_to_reply/headrace")
    ->ArgName("in_flight")
    ->UseManualTime()
    ->MeasureProcessCPUTime()
    ->Arg(1)
    ->Arg(64)
    ->Arg(512);
BENCHMARK(floor)
    ->Name("lane/submit_to_reply/floor")
    ->ArgName("in_flight")
    ->UseManualTime()
    ->MeasureProcessCPUTime()
    ->Arg(1)
    ->Arg(64)
    ->Arg(512);

}  // namespace
}  // namespace headrace
