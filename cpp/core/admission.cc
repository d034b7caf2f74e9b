// SPDX-License-Identifier: Apache-2.0
//
// Stage 2 of 8 ends here: the rows of a request, and whether it can share a batch.

#include "core/admission.h"

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>

namespace headrace {
namespace {

// Rows without elements cost nothing to send; so many of them still count without overflow.
constexpr std::int64_t kRowsMax = std::numeric_limits<std::int32_t>::max();

// What a tensor keeps from being freed while it waits.
std::size_t content_bytes(const TensorView& tensor) {
  if (tensor.dtype != DType::kString) return tensor.bytes;
  std::size_t bytes = 0;
  for (std::int64_t i = 0; i < tensor.elements(); ++i) bytes += sizeof(std::string_view) + tensor.strings[i].size();
  return bytes;
}

// Whether `rows` such rows have a size: beside a dimension of 0, whose tensor is empty, any other may be too large.
bool size_is_known(const TensorView& input, std::int64_t rows) {
  if (input.elements() != 0) return true;  // it is in memory, and so much smaller
  Shape shape = input.shape;
  shape[0] = rows;
  return shape_elements(shape) >= 0;
}

}  // namespace

std::int64_t rows_of(const Request& request) {
  for (const TensorView& input : request.inputs)
    if (!input.is_absent()) return input.shape.empty() ? 1 : input.shape[0];
  return 1;
}

Status admit(const AdmissionLimits& limits, std::int64_t now_ns, Request* admitted) {
  Request& request = *admitted;
  request.arrival_ns = now_ns;
  request.rows = rows_of(request);
  request.alone = !limits.batched;
  std::size_t input_bytes = 0;
  bool has_inputs = false;
  for (const TensorView& input : request.inputs) {
    if (input.is_absent()) continue;
    has_inputs = true;
    request.alone |= input.shape.empty();
    input_bytes += content_bytes(input);
  }
  request.alone |= !has_inputs;
  request.bytes = std::max(request.bytes, input_bytes);
  if (input_bytes > limits.slab_bytes_max) {
    return InvalidArgument("the request's inputs have " + std::to_string(input_bytes) +
                           " bytes; the largest batch may have " + std::to_string(limits.slab_bytes_max) +
                           " (slab_bytes_max)");
  }
  if (request.rows > kRowsMax) {
    return InvalidArgument("the request has " + std::to_string(request.rows) + " rows; a batch may have " +
                           std::to_string(kRowsMax));
  }
  if (request.deadline_ns <= request.arrival_ns)
    return DeadlineExceeded("Run() timeout exceeded before the request was queued");
  if (request.alone) return {};
  for (const TensorView& input : request.inputs) {
    if (input.is_absent()) continue;
    if (input.shape[0] != request.rows) {
      return InvalidArgument("Batching Run() input tensors must have equal 0th-dimension size: got " +
                             std::to_string(request.rows) + " and " + std::to_string(input.shape[0]));
    }
    if (!size_is_known(input, limits.max_batch_size)) {
      return InvalidArgument("shape " + shape_text(input.shape) + " is too large for a batch of " +
                             std::to_string(limits.max_batch_size) + " rows");
    }
  }
  if (request.rows > limits.max_batch_size) {
    return InvalidArgument("Task size " + std::to_string(request.rows) + " is larger than maximum input batch size " +
                           std::to_string(limits.max_batch_size));
  }
  return {};
}

}  // namespace headrace
