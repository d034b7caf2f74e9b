// SPDX-License-Identifier: Apache-2.0
//
// Stages 2 to 7 of 8: the table of contents of a request's path.

#include "lane.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>

namespace headrace {
namespace {

// Deadlines are looked at this far apart at most, so that many of them cost one look.
constexpr std::int64_t kDeadlineGrainNs = 200'000;
// Requests that were cancelled are unlinked this soon, when no executor does it before.
constexpr std::int64_t kSweepWithinNs = 10'000'000;

// What is not announced at once is announced so soon.
constexpr std::int64_t kAnnounceWithinNs = 1'000'000;

// A run that takes longer has an executor of its own; the thread that waits for it stays free for Ctrl-C.
constexpr std::int64_t kShortRunNs = 50'000'000;

}  // namespace

Lane::Lane(LaneGroup& group, Signature signature, const LaneOptions& options, std::shared_ptr<Runner> runner,
           std::shared_ptr<SlabPinner> pinner)
    : group_(group),
      signature_(std::move(signature)),
      options_(options),
      limits_{options.batched, options.policy.max_batch_size, options.slab_bytes_max},
      runner_(std::move(runner)),
      slabs_(std::move(pinner)),
      stats_(options.policy.max_batch_size),
      scheduler_(options.policy, options.slab_bytes_max),
      drained_future_(drained_.get_future()) {
  group_.timer.add(this);
}

Lane::~Lane() {
  group_.timer.remove(this);
  scheduler_.absorb(mailbox_.take_all());
}

// ---- Stages 2-3: admit, enqueue -------------------------------------------------------------------------------------

Status Lane::submit(const RequestPtr& request) {
  bool answered = false;
  Status status = accept(request, &answered);
  if (status.ok() && !answered && enqueue(request)) group_.parking.wake_one();
  return status;
}

Status Lane::submit_to_run(const RequestPtr& request) {
  bool answered = false;
  Status status = accept(request, &answered);
  if (status.ok() && !answered) enqueue(request);
  return status;
}

Status Lane::submit_soon(const RequestPtr& request) {
  bool answered = false;
  Status status = accept(request, &answered);
  if (!status.ok() || answered || !enqueue(request)) return status;
  if (options_.policy.policy == Policy::kAdaptive && waiting_rows_.load() < options_.policy.max_batch_size)
    group_.timer.call_by(*this, after_ns(group_.clock.now_ns(), kAnnounceWithinNs));
  else
    group_.parking.wake_one();
  return status;
}

void Lane::announce() {
  if (options_.policy.policy == Policy::kAdaptive) group_.parking.wake_one();  // others have their windows
}

// Gives it a place in the queue, or its answer if it needs no run.
Status Lane::accept(const RequestPtr& request, bool* answered) {
  Status status = admit(limits_, group_.clock.now_ns(), request.get());
  if (status.ok() && request->rows == 0) {
    if (*answered = answer_empty(request); *answered) return {};
    request->alone = true;  // only a run knows the outputs; like any other it takes a place in the queue
  }
  if (status.ok()) status = reserve(*request);
  if (!status.ok()) ++(status.code() == Code::kUnavailable ? stats_.rejected : stats_.invalid);
  return status;
}

bool Lane::would_run_shortly(const Request& request) {
  if (runner_ == nullptr || group_.parking.was_parked() == 0) return false;
  const std::int64_t rows = rows_of(request);
  const bool waits = options_.policy.policy == Policy::kTimeout && options_.batched;
  if (waits && waiting_rows_.load() + rows < options_.policy.max_batch_size) return false;
  std::int64_t p99_ns = kNever;
  {
    std::lock_guard lock(mutex_);
    p99_ns = scheduler_.p99_ns(rows);
  }
  return p99_ns <= kShortRunNs &&
         (request.deadline_ns == kNever || after_ns(group_.clock.now_ns(), p99_ns) <= request.deadline_ns);
}

// Zero rows in, zero rows out, without a run; false where the lane is not batched or the outputs' types are not known.
bool Lane::answer_empty(const RequestPtr& request) {
  if (request->alone || signature_.outputs.empty()) return false;
  static constexpr std::byte kNothing{};
  static constexpr std::string_view kNoStrings[1];
  std::vector<TensorView> outputs;
  for (const TensorSpec& spec : signature_.outputs) {
    if (!dtype_is_served(spec.dtype)) return false;
    TensorView output{.dtype = spec.dtype, .shape = spec.shape.value_or(Shape{0}), .data = &kNothing};
    if (spec.dtype == DType::kString) output = {.dtype = spec.dtype, .shape = output.shape, .strings = kNoStrings};
    if (output.shape.empty()) output.shape.push_back(0);
    output.shape[0] = 0;
    for (std::int64_t& dim : output.shape) dim = std::max<std::int64_t>(dim, 0);
    outputs.push_back(std::move(output));
  }
  Request::State from;
  if (!request->claim_answer(&from)) return true;
  request->status = request->write_reply(outputs);
  ++stats_.requests;
  ++(request->status.ok() ? stats_.ok : stats_.failed);
  RequestPtr answered[] = {request};
  deliver(answered);
  return true;
}

// Takes a place in the queue, or says what is full.
Status Lane::reserve(Request& request) {
  const std::int64_t rows = queue_rows(request);
  const std::int64_t rows_max = options_.max_enqueued_batches * options_.policy.max_batch_size;
  const std::int64_t rows_before = waiting_rows_.fetch_add(rows);
  const std::size_t bytes_before = group_.waiting_bytes.fetch_add(request.bytes);
  Status status;
  if (group_.closing.load()) {  // after the add: who closes either sees this request coming or is seen
    status = Unavailable("the model is being closed");
  } else if (rows_before + rows > rows_max) {
    const std::int64_t size = options_.policy.max_batch_size;
    status =
        Unavailable("The batch scheduling queue to which this task was submitted is full; currently " +
                    std::to_string((rows_before + size - 1) / size) + " batches enqueued and max_enqueued_batches is " +
                    std::to_string(options_.max_enqueued_batches));
  } else if (bytes_before + request.bytes > options_.waiting_bytes_max) {
    status =
        Unavailable("the requests that wait for model " + group_.model_name + " hold " + std::to_string(bytes_before) +
                    " bytes, and the limit is " + std::to_string(options_.waiting_bytes_max) + " (waiting_bytes_max)");
  }
  if (!status.ok()) leave_queue(rows, request.bytes);
  return status;
}

// Whether an executor should look at once.
bool Lane::enqueue(const RequestPtr& request) {
  ++stats_.requests;
  const std::int64_t deadline_ns = request->deadline_ns;
  std::int64_t due_ns = deadline_ns;
  const bool alone = request->alone;
  const bool waits = options_.policy.policy == Policy::kTimeout && !alone;
  if (waits) due_ns = std::min(due_ns, after_ns(request->arrival_ns, options_.policy.batch_timeout_ns));
  mailbox_.push(RequestPtr(request).detach());
  if (due_ns != kNever) group_.timer.call_by(*this, due_ns);
  if (abandoned_.load()) abandon();  // it may have swept before the push
  // The last of several producers to push finds all their rows counted: a full batch is never overlooked.
  return !waits || waiting_rows_.load() >= options_.policy.max_batch_size || group_.closing.load();
}

// ---- Stages 4-7: form, gather, run, reply ---------------------------------------------------------------------------

void Lane::run_next() {
  std::unique_ptr<Batch> batch = next();
  if (batch == nullptr) return;
  Outputs outputs;
  const Status status = runner_->run(*batch, &outputs);
  finish(std::move(batch), status, std::move(outputs));
}

std::unique_ptr<Batch> Lane::next() {
  const std::int64_t now_ns = group_.clock.now_ns();
  const bool closing = group_.closing.load();
  std::vector<RequestPtr> expired;
  Scheduler::Formed formed;
  Scheduler::Head rest;
  {
    std::lock_guard lock(mutex_);
    expired = refresh(now_ns);
    formed = scheduler_.form(now_ns, closing);
    if (formed.batch != nullptr) running_.push_back(formed.batch.get());
    rest = scheduler_.head(now_ns, closing);
  }
  if (rest.arrival_ns != kNever) group_.parking.wake_one();
  call_for_window(rest);
  if (formed.batch != nullptr) {
    std::int64_t rows = 0;
    std::size_t bytes = 0;
    for (const Slot& slot : formed.batch->slots()) {
      rows += queue_rows(*slot.request);
      bytes += slot.request->bytes;
    }
    leave_queue(rows, bytes);
  }
  answer_expired(expired);
  answer_expired(formed.expired);
  if (formed.batch == nullptr) return nullptr;
  const Status gathered = formed.batch->gather(slabs_);
  formed.batch->start(group_.clock.now_ns());
  if (gathered.ok()) return std::move(formed.batch);
  finish(std::move(formed.batch), gathered, {});
  return nullptr;
}

void Lane::finish(std::unique_ptr<Batch> batch, const Status& status, Outputs outputs) {
  Batch::Answered answered = batch->finish(status, outputs, group_.clock.now_ns());
  outputs = {};
  stats_.ok.add(answered.ok);
  stats_.failed.add(answered.failed);
  stats_.count_run(*batch);
  deliver(answered.requests);  // after the counting: who has a reply finds it counted
  if (batch->slab() != nullptr && batch->slab().use_count() > 1) ++stats_.slabs_held;
  if (options_.log_batches) log(*batch);
  std::lock_guard lock(mutex_);
  std::erase(running_, batch.get());
  if (status.ok()) scheduler_.record_run(batch->rows(), batch->done_ns() - batch->started_ns(), batch->done_ns());
  signal_if_drained();
}

std::int64_t Lane::oldest_eligible_arrival_ns() {
  const std::int64_t now_ns = group_.clock.now_ns();
  std::vector<RequestPtr> expired;
  Scheduler::Head head;
  {
    std::lock_guard lock(mutex_);
    expired = refresh(now_ns);
    head = scheduler_.head(now_ns, group_.closing.load());
  }
  call_for_window(head);
  answer_expired(expired);
  return head.arrival_ns;
}

// The timer may have come for this window while an older one was eligible: whoever looked last calls it again.
void Lane::call_for_window(const Scheduler::Head& head) {
  if (head.next_eligible_at_ns != kNever) group_.timer.call_by(*this, head.next_eligible_at_ns);
}

// Empties the mailbox and unlinks what was answered meanwhile; hands out what expired.  REQUIRES: mutex_ held.
std::vector<RequestPtr> Lane::refresh(std::int64_t now_ns) {
  scheduler_.absorb(mailbox_.take_all());
  if (!cancelled_.exchange(false)) return {};
  return scheduler_.sweep(now_ns);
}

void Lane::log(const Batch& batch) const {
  const std::int64_t oldest_arrival_ns = batch.slots().front().request->arrival_ns;
  std::fprintf(stderr, "batch %s/%s rows=%lld requests=%zu wait_us=%lld run_us=%lld reason=%.*s\n",
               group_.model_name.c_str(), signature_.name.c_str(), static_cast<long long>(batch.rows()),
               batch.slots().size(), static_cast<long long>((batch.started_ns() - oldest_arrival_ns) / 1000),
               static_cast<long long>((batch.done_ns() - batch.started_ns()) / 1000),
               static_cast<int>(batch_reason_name(batch.reason()).size()), batch_reason_name(batch.reason()).data());
}

// ---- Answers that come before the run's -----------------------------------------------------------------------------

bool Lane::cancel(const RequestPtr& request) {
  if (!answer_early(request, Cancelled("the request was cancelled"), stats_.cancelled)) return false;
  cancelled_.store(true);
  group_.timer.call_by(*this, after_ns(group_.clock.now_ns(), kSweepWithinNs));
  return true;
}

// Whether this call answered it.
bool Lane::answer_early(const RequestPtr& request, Status status, Counter& counter) {
  Request::State from;
  if (!request->claim_answer(&from)) return false;
  request->status = std::move(status);
  ++counter;
  RequestPtr answered[] = {request};
  deliver(answered);
  if (from == Request::State::kWaiting) leave_queue(queue_rows(*request), request->bytes);
  return true;
}

void Lane::answer_expired(const std::vector<RequestPtr>& expired) {
  for (const RequestPtr& request : expired)
    answer_early(request, DeadlineExceeded("Run() timeout exceeded while waiting in batching queue"), stats_.expired);
}

void Lane::leave_queue(std::int64_t rows, std::size_t bytes) {
  group_.waiting_bytes.fetch_sub(bytes);
  waiting_rows_.fetch_sub(rows);
  if (!group_.closing.load()) return;
  group_.parking.wake_all();  // executors stay as long as anything waits
  std::lock_guard lock(mutex_);
  signal_if_drained();
}

std::int64_t Lane::on_timer(std::int64_t now_ns) {
  std::vector<RequestPtr> expired;
  std::vector<RequestPtr> late;
  Scheduler::Head head;
  std::int64_t deadline_ns = kNever;
  {
    std::lock_guard lock(mutex_);
    scheduler_.absorb(mailbox_.take_all());
    cancelled_.store(false);
    expired = scheduler_.sweep(now_ns);
    head = scheduler_.head(now_ns, group_.closing.load());
    deadline_ns = scheduler_.earliest_deadline_ns();
    for (const Batch* batch : running_) {
      for (const Slot& slot : batch->slots()) {
        if (slot.request->was_answered()) continue;
        if (slot.request->deadline_ns <= now_ns)
          late.push_back(slot.request);
        else
          deadline_ns = std::min(deadline_ns, slot.request->deadline_ns);
      }
    }
  }
  if (head.arrival_ns != kNever) group_.parking.wake_one();
  answer_expired(expired);
  for (const RequestPtr& request : late)
    answer_early(request, DeadlineExceeded("Run() timeout exceeded while the batch was running"), stats_.expired);
  return std::min(std::max(deadline_ns, after_ns(now_ns, kDeadlineGrainNs)), head.next_eligible_at_ns);
}

// ---- The end --------------------------------------------------------------------------------------------------------

// REQUIRES: mutex_ held.
void Lane::signal_if_drained() {
  if (drained_set_ || !group_.closing.load() || waiting_rows_.load() != 0 || !running_.empty()) return;
  drained_set_ = true;
  drained_.set_value();
}

bool Lane::wait_drained(std::int64_t timeout_ns) {
  {
    std::lock_guard lock(mutex_);
    signal_if_drained();
  }
  const std::int64_t wait_ns = std::min(timeout_ns, kNever / 2);  // it is added to the system's time
  return drained_future_.wait_for(std::chrono::nanoseconds(wait_ns)) == std::future_status::ready;
}

void Lane::abandon() {
  abandoned_.store(true);  // before the mailbox is emptied: who pushes later sees it
  std::vector<RequestPtr> left;
  {
    std::lock_guard lock(mutex_);
    scheduler_.absorb(mailbox_.take_all());
    left = scheduler_.sweep(kNever);
    for (const Batch* batch : running_)
      for (const Slot& slot : batch->slots()) left.push_back(slot.request);
  }
  for (const RequestPtr& request : left) answer_early(request, Unavailable("the model was closed"), stats_.closed);
}

}  // namespace headrace
