// SPDX-License-Identifier: Apache-2.0
//
// START HERE.  Lane: one signature's path, from an accepted request to its reply.
//
//   submit()    stages 2-3: admit, enqueue                        on the front end's thread
//   run_next()  stages 4-7: form, gather, run, reply              on an executor
//
// Thread safety: all but the constructor and destructor from any thread.
// Ownership: a lane belongs to its Model, which outlives its executors; see request.h, batch.h and slab.h for the rest.
// Progress: submit() takes no lock and makes no system call unless somebody sleeps who must be woken.  Executors and
//   the timer hold `mutex_` for a moment, never while they gather, run or reply.
// Invariants: `waiting_rows_` counts the requests in state waiting, from before their push on, so that it is 0 only
//   when nothing is on its way; every accepted request is answered exactly once.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "core/admission.h"
#include "core/batch.h"
#include "core/clock.h"
#include "core/mailbox.h"
#include "core/parking.h"
#include "core/policy.h"
#include "core/request.h"
#include "core/scheduler.h"
#include "core/signature.h"
#include "core/slab.h"
#include "core/stats.h"
#include "core/status.h"
#include "core/timer.h"
#include "run/runner.h"

namespace headrace {

struct LaneOptions {
  PolicyOptions policy;
  std::int64_t max_enqueued_batches = 64;
  bool batched = true;  // false: each request runs alone
  std::size_t slab_bytes_max = std::size_t{256} << 20;
  std::size_t waiting_bytes_max = std::size_t{512} << 20;  // of all lanes of the model
  bool log_batches = false;                                // a line on stderr for each
};

// What the lanes of one model version share.
struct LaneGroup {
  LaneGroup(std::string name, const Clock& clock, Timer& timer)
      : model_name(std::move(name)), clock(clock), timer(timer) {}

  const std::string model_name;
  const Clock& clock;
  Timer& timer;
  Parking<> parking;
  std::atomic<std::size_t> waiting_bytes{0};
  std::atomic<bool> closing{false};  // set once, by Model::close()
};

class Lane final : public TimerClient {
 public:
  // `runner` may be null where batches are taken with next(); `pinner` may be null.
  Lane(LaneGroup& group, Signature signature, const LaneOptions& options, std::shared_ptr<Runner> runner,
       std::shared_ptr<SlabPinner> pinner);
  ~Lane() override;

  // Stages 2-3.  The front end has filled inputs (in the signature's order, of its dtypes), deadline and sink.
  // On OK the request is answered through its sink, maybe before this returns; on an error it never is.
  [[nodiscard]] Status submit(const RequestPtr& request);

  // Whether a run of the request alone is short enough to be run by the thread that brings it: where 99 of 100 runs of
  // that size took less than 50 ms, and end before its deadline.  False without a runner, and if it would not run now.
  bool would_run_shortly(const Request& request);
  // As submit(), but wakes no executor: the caller has borrowed the place of one and calls run_next(), or calls
  // announce() before it waits.
  [[nodiscard]] Status submit_to_run(const RequestPtr& request);
  // As submit(), for a caller that knows of more to come: wakes an executor when a batch is full, at announce(), or
  // within a millisecond.
  [[nodiscard]] Status submit_soon(const RequestPtr& request);
  void announce();

  // Takes the request out of the queue, or gives up its result; answers it with CANCELLED unless it is answered.
  bool cancel(const RequestPtr& request);

  // Stages 4-7 for the oldest eligible batch; nothing if there is none.  REQUIRES: a runner.
  void run_next();

  // Stages 4-5 alone: the gathered and started batch, or null; give it back with finish(), stage 7.
  std::unique_ptr<Batch> next();
  void finish(std::unique_ptr<Batch> batch, const Status& status, Outputs outputs);

  // When the oldest request arrived that could be run now; kNever if there is none.  Empties the mailbox.
  std::int64_t oldest_eligible_arrival_ns();

  std::int64_t on_timer(std::int64_t now_ns) override;

  // After `closing` was set: waits until everything accepted is answered and nothing runs; false at the deadline.
  bool wait_drained(std::int64_t timeout_ns);
  // Answers with UNAVAILABLE whatever still waits or runs.
  void abandon();

  const Signature& signature() const { return signature_; }
  const LaneOptions& options() const { return options_; }
  const Stats& stats() const { return stats_; }
  const SlabPool& slabs() const { return slabs_; }
  bool has_runner() const { return runner_ != nullptr; }
  std::int64_t was_waiting_rows() const { return waiting_rows_.load(); }

 private:
  Status accept(const RequestPtr& request, bool* answered);
  bool answer_empty(const RequestPtr& request);
  Status reserve(Request& request);
  bool enqueue(const RequestPtr& request);
  bool answer_early(const RequestPtr& request, Status status, Counter& counter);
  void answer_expired(const std::vector<RequestPtr>& expired);
  void leave_queue(std::int64_t rows, std::size_t bytes);
  void call_for_window(const Scheduler::Head& head);
  std::vector<RequestPtr> refresh(std::int64_t now_ns);
  void signal_if_drained();
  void log(const Batch& batch) const;
  std::int64_t queue_rows(const Request& request) const { return request.alone ? 1 : request.rows; }

  LaneGroup& group_;
  const Signature signature_;
  const LaneOptions options_;
  const AdmissionLimits limits_;
  const std::shared_ptr<Runner> runner_;
  SlabPool slabs_;
  Stats stats_;

  Mailbox<Request> mailbox_;
  alignas(kCacheLine) std::atomic<std::int64_t> waiting_rows_{0};
  std::atomic<bool> cancelled_{false};  // somebody cancelled a request that may still be linked
  std::atomic<bool> abandoned_{false};  // nothing will run any more

  std::mutex mutex_;
  Scheduler scheduler_;          // guarded by mutex_
  std::vector<Batch*> running_;  // guarded by mutex_
  bool drained_set_ = false;     // guarded by mutex_
  std::promise<void> drained_;
  std::shared_future<void> drained_future_;
};

}  // namespace headrace
