// SPDX-License-Identifier: Apache-2.0
//
// Batch: requests that run together, and the slab that their rows were gathered into.
//
// Thread safety: none; one executor owns a batch from form to done.
// Ownership: holds a reference to each of its requests and to its slab.
// Invariants: formed -> running -> done, and all of it is moved in batch.cc; slots are in arrival order and cover
//   [0, rows) without gaps; after gather() every input view lies in the slab, or in the memory of the one request whose
//   inputs can be run where they are.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/request.h"
#include "core/signature.h"
#include "core/slab.h"
#include "core/status.h"
#include "core/tensor.h"

namespace headrace {

// The rows of one batch that one request owns.
struct Slot {
  RequestPtr request;
  std::int64_t first_row = 0;
  std::int64_t rows = 0;
};

// Why a batch ran when it did.
enum class BatchReason : int { kFull = 0, kExecutorFree = 1, kWindow = 2, kShutdown = 3, kAlone = 4 };
inline constexpr int kBatchReasons = 5;
std::string_view batch_reason_name(BatchReason reason);

// What a run gave: one view per output of the signature, alive as long as `owner` is.
struct Outputs {
  std::vector<TensorView> tensors;
  std::shared_ptr<const void> owner;
  std::shared_ptr<const std::vector<std::string>> names{};  // where the signature leaves them open
};

// Hands answered requests to their sinks, one call for each sink; may reorder them.
void deliver(std::span<RequestPtr> answered);

class Batch {
 public:
  enum class State { kFormed, kRunning, kDone };

  // What finish() answered: how many requests with OK and with an error, and the requests, to be delivered.
  struct Answered {
    std::int64_t ok = 0;
    std::int64_t failed = 0;
    std::vector<RequestPtr> requests;
  };

  // REQUIRES: the caller claimed the run of every request; they agree on dtypes and, if several, trailing shapes.
  Batch(std::vector<RequestPtr> requests, BatchReason reason, std::int64_t formed_ns);

  // Stage 5: takes a slab and copies every input of every request into it, once; nothing for one request that can be
  // run in place.  REQUIRES: formed.
  Status gather(SlabPool& slabs);

  // formed -> running.
  void start(std::int64_t now_ns);

  // Stage 7, from any state to done: claims the answers that nobody gave yet.  With an OK status each request writes
  // its reply from its rows of the outputs; else each gets `run_status`.  The caller delivers them, once it has
  // counted.
  Answered finish(const Status& run_status, const Outputs& outputs, std::int64_t now_ns);

  State state() const { return state_; }
  std::span<const Slot> slots() const { return slots_; }
  std::int64_t rows() const { return rows_; }
  // One per input of the signature; valid after gather().
  std::span<const TensorView> inputs() const { return inputs_; }
  // Keeps the memory of the inputs; a runner takes a copy for as long as anything may read them.
  std::shared_ptr<const void> memory() const {
    return slab_ != nullptr ? std::shared_ptr<const void>(slab_) : slots_.front().request->in_place;
  }
  // Null where the batch runs in place.
  const SlabPtr& slab() const { return slab_; }

  BatchReason reason() const { return reason_; }
  std::int64_t formed_ns() const { return formed_ns_; }
  std::int64_t started_ns() const { return started_ns_; }
  std::int64_t done_ns() const { return done_ns_; }

 private:
  Status take_memory(SlabPool& slabs);
  void copy_inputs();

  State state_ = State::kFormed;
  std::vector<Slot> slots_;
  std::int64_t rows_ = 0;
  std::vector<TensorView> inputs_;
  std::vector<std::string_view> strings_;
  SlabPtr slab_;
  BatchReason reason_;
  std::int64_t formed_ns_;
  std::int64_t started_ns_ = 0;
  std::int64_t done_ns_ = 0;
};

}  // namespace headrace
