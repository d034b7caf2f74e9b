// SPDX-License-Identifier: Apache-2.0
//
// Stage 5 of 8: gather the rows of a batch into its slab.  Stage 7: give each request its rows of the outputs.

#include "core/batch.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <new>
#include <string>
#include <utility>

namespace headrace {
namespace {

std::size_t align_up(std::size_t bytes) { return (bytes + kSlabAlignment - 1) / kSlabAlignment * kSlabAlignment; }

// What is wrong with `output` as an output that is to be divided by rows; TF Serving's words.
Status check_divisible(const TensorView& output, std::int64_t rows) {
  if (output.shape.empty()) return FailedPrecondition("Batched output tensor has 0 dimensions");
  if (output.shape[0] != rows) {
    return FailedPrecondition(
        "Batched output tensor's 0th dimension does not equal the sum of the 0th dimension sizes of the input "
        "tensors: got " +
        std::to_string(output.shape[0]) + " rows for " + std::to_string(rows));
  }
  return {};
}

Status write_reply(Request& request, std::span<const TensorView> outputs) {
  try {
    return request.write_reply(outputs);
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("no memory for the reply; send fewer rows or ask for fewer outputs");
  }
}

}  // namespace

std::string_view batch_reason_name(BatchReason reason) {
  switch (reason) {
    case BatchReason::kFull:
      return "full";
    case BatchReason::kExecutorFree:
      return "executor_free";
    case BatchReason::kWindow:
      return "window";
    case BatchReason::kShutdown:
      return "shutdown";
    case BatchReason::kAlone:
      return "alone";
  }
  return "unknown";
}

Batch::Batch(std::vector<RequestPtr> requests, BatchReason reason, std::int64_t formed_ns)
    : reason_(reason), formed_ns_(formed_ns) {
  slots_.reserve(requests.size());
  for (RequestPtr& request : requests) {
    const std::int64_t rows = request->rows;
    slots_.push_back({std::move(request), rows_, rows});
    rows_ += rows;
  }
}

Status Batch::gather(SlabPool& slabs) {
  assert(state_ == State::kFormed);
  Status status = take_memory(slabs);
  if (status.ok()) copy_inputs();
  for (const Slot& slot : slots_) slot.request->inputs_gathered();
  return status;
}

// Finds room for the inputs: `inputs_` gets their types, shapes and sizes.
Status Batch::take_memory(SlabPool& slabs) {
  const Request& first = *slots_.front().request;
  inputs_ = first.inputs;
  if (slots_.size() == 1 && first.in_place != nullptr) return {};
  std::size_t slab_bytes = 0;
  std::size_t string_count = 0;
  for (TensorView& input : inputs_) {
    if (input.is_absent()) continue;
    if (slots_.size() > 1) input.shape[0] = rows_;
    if (input.dtype == DType::kString) {
      string_count += static_cast<std::size_t>(input.elements());
      continue;
    }
    input.bytes = static_cast<std::size_t>(input.elements()) * dtype_bytes(input.dtype);
    slab_bytes += align_up(input.bytes);
  }
  slab_ = slabs.acquire(slab_bytes);
  if (slab_ == nullptr)
    return ResourceExhausted("no memory for a batch of " + std::to_string(slab_bytes) + " bytes; lower --batch_size");
  try {
    strings_.reserve(string_count);
  } catch (const std::bad_alloc&) {
    return ResourceExhausted("no memory for a batch of " + std::to_string(string_count) +
                             " strings; lower --batch_size");
  }
  return {};
}

void Batch::copy_inputs() {
  if (slab_ == nullptr) return;  // they are run where they are
  std::byte* to = slab_->data();
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    TensorView& input = inputs_[i];
    if (input.is_absent()) continue;
    if (input.dtype == DType::kString) {
      input.strings = strings_.data() + strings_.size();
      for (const Slot& slot : slots_) {
        const TensorView& from = slot.request->inputs[i];
        strings_.insert(strings_.end(), from.strings, from.strings + from.elements());
      }
      continue;
    }
    input.data = to;
    std::byte* row = to;
    for (const Slot& slot : slots_) {
      const TensorView& from = slot.request->inputs[i];
      if (from.bytes != 0) std::memcpy(row, from.data, from.bytes);
      row += from.bytes;
    }
    assert(static_cast<std::size_t>(row - to) == input.bytes);
    to += align_up(input.bytes);
  }
}

void Batch::start(std::int64_t now_ns) {
  assert(state_ == State::kFormed);
  state_ = State::kRunning;
  started_ns_ = now_ns;
}

Batch::Answered Batch::finish(const Status& run_status, const Outputs& outputs, std::int64_t now_ns) {
  assert(state_ != State::kDone);
  state_ = State::kDone;
  done_ns_ = now_ns;
  Status status = run_status;
  // A request that runs by itself gets all there is, as it would without batching.
  const bool divide = slots_.size() > 1;
  for (std::size_t i = 0; divide && status.ok() && i < outputs.tensors.size(); ++i)
    status = check_divisible(outputs.tensors[i], rows_);

  Answered answered;
  answered.requests.reserve(slots_.size());
  std::vector<TensorView> parts(outputs.tensors.size());
  for (const Slot& slot : slots_) {
    Request::State from;
    if (!slot.request->claim_answer(&from)) continue;
    slot.request->status = status;
    if (status.ok()) {
      slot.request->output_names = outputs.names;
      for (std::size_t i = 0; i < parts.size(); ++i) {
        parts[i] = outputs.tensors[i];  // reuses the shape's memory
        if (divide) parts[i].narrow(slot.first_row, slot.rows);
      }
      slot.request->status = write_reply(*slot.request, parts);
    }
    ++(slot.request->status.ok() ? answered.ok : answered.failed);
    answered.requests.push_back(slot.request);
  }
  return answered;
}

void deliver(std::span<RequestPtr> answered) {
  const auto sink_before = [](const RequestPtr& a, const RequestPtr& b) { return a->sink < b->sink; };
  if (!std::is_sorted(answered.begin(), answered.end(), sink_before))
    std::stable_sort(answered.begin(), answered.end(), sink_before);
  for (std::size_t begin = 0, end = 0; begin < answered.size(); begin = end) {
    ReplySink* sink = answered[begin]->sink;
    while (end < answered.size() && answered[end]->sink == sink) ++end;
    sink->deliver(answered.subspan(begin, end - begin));
  }
}

}  // namespace headrace
