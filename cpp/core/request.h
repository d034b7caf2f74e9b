// SPDX-License-Identifier: Apache-2.0
//
// Request: the rows that one client sent for one lane, and the reply it will get.
//
// Thread safety: the front end fills it before submit(); from then on the thread that won the state's
//   compare-exchange owns what that state says (see State).  claim_*() from any thread.
// Ownership: reference counted.  The lane holds one reference from submit() until the request is out of its queue
//   and its batch; the sink gets one with the reply; a front end that wants to cancel holds one more.
// Invariant: waiting -> running -> answered, or waiting -> answered; whoever moves it to answered, and nobody else,
//   writes the reply and delivers it: exactly one reply, whatever races.  Its inputs are read only while it runs, until
//   they are gathered.

#pragma once

#include <atomic>
#include <boost/smart_ptr/intrusive_ptr.hpp>
#include <boost/smart_ptr/intrusive_ref_counter.hpp>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/clock.h"
#include "core/status.h"
#include "core/tensor.h"

namespace headrace {

class Request;
using RequestPtr = boost::intrusive_ptr<Request>;

// Where a front end takes its replies back, a whole batch at a time, so that it is woken once.
//
// Thread safety: deliver() from any thread (executors, the timer, cancellers), also from within submit().
class ReplySink {
 public:
  virtual ~ReplySink() = default;

  // Takes answered requests, in no particular order.  Must not block and must not throw.
  virtual void deliver(std::span<const RequestPtr> answered) noexcept = 0;
};

class Request : public boost::intrusive_ref_counter<Request, boost::thread_safe_counter> {
 public:
  enum class State : std::uint8_t { kWaiting, kRunning, kAnswered };

  virtual ~Request() = default;

  // Stage 7: makes the reply from this request's rows of the outputs, in the signature's order, which may cut it down
  // to the outputs asked for.  The views live until the call returns.  Called at most once, by the thread that
  // claimed the answer; a failure becomes the request's status.
  virtual Status write_reply(std::span<const TensorView> outputs) = 0;

  // Whether the caller may run it (waiting -> running).
  [[nodiscard]] bool claim_run() {
    std::uint32_t expected = 0;
    return state_.compare_exchange_strong(expected, kRan);
  }

  // Whether the caller must answer it (any state but answered -> answered).  `from` is the state it was in.
  [[nodiscard]] bool claim_answer(State* from) {
    *from = state_of(state_.fetch_or(kAnswered));
    return *from != State::kAnswered;
  }

  bool was_answered() const { return state_of(state_.load()) == State::kAnswered; }

  // The inputs were copied to where the batch has them, or will not be.  Called by the executor that claimed the run.
  void inputs_gathered() {
    if (!inputs_lent) return;
    if (state_of(state_.fetch_or(kGathered)) == State::kAnswered) state_.notify_all();
  }

  // For a front end that lent its inputs, once the request is answered or was refused: waits until nobody reads them
  // any more, which is as long as copying them takes.
  void wait_inputs_free() const {
    for (std::uint32_t state = state_.load(); are_read(state); state = state_.load()) state_.wait(state);
  }
  bool inputs_were_free() const { return !are_read(state_.load()); }

  // Filled by the front end.
  std::vector<TensorView> inputs;  // in the signature's order; memory lives as long as the request
  std::int64_t rows = 1;           // dimension 0 of every input; set by the lane
  std::int64_t deadline_ns = kNever;
  std::size_t bytes = 0;      // of memory that it keeps; the lane raises it to what its inputs have
  ReplySink* sink = nullptr;  // outlives the request
  std::uint64_t token = 0;    // the front end's own name for it
  bool inputs_lent = false;   // their memory lives only until wait_inputs_free() returns
  // Keeps the inputs' memory: set where it is aligned as a slab is, and may be read as long as this is kept.
  std::shared_ptr<const void> in_place;

  // Owned by the lane.
  Request* next = nullptr;      // link of the mailbox, then of its bucket
  std::int64_t arrival_ns = 0;  // when submit() accepted it
  bool alone = false;           // never shares a batch (scalar input, no input, lane not batched)

  // The names of the outputs, set before write_reply() where the signature leaves them open.
  std::shared_ptr<const std::vector<std::string>> output_names;

  // The reply, for whoever holds it after delivery.
  Status status;

 private:
  // What has happened to it.
  static constexpr std::uint32_t kRan = 1;
  static constexpr std::uint32_t kAnswered = 2;
  static constexpr std::uint32_t kGathered = 4;

  static bool are_read(std::uint32_t state) { return (state & (kRan | kGathered)) == kRan; }

  static State state_of(std::uint32_t state) {
    if ((state & kAnswered) != 0) return State::kAnswered;
    return (state & kRan) != 0 ? State::kRunning : State::kWaiting;
  }

  std::atomic<std::uint32_t> state_{0};
};

}  // namespace headrace
