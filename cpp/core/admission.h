// SPDX-License-Identifier: Apache-2.0
//
// Admission: what a request must be like before it may take a place in the queue of a lane.
//
// Thread safety: pure functions of a request that nobody else knows yet.

#pragma once

#include <cstddef>
#include <cstdint>

#include "core/request.h"
#include "core/status.h"

namespace headrace {

struct AdmissionLimits {
  bool batched = true;  // false: each request runs alone
  std::int64_t max_batch_size = 64;
  std::size_t slab_bytes_max = std::size_t{256} << 20;
};

// Dimension 0 of the first input that is there; 1 where it has none.
std::int64_t rows_of(const Request& request);

// Sets the request's arrival, rows, bytes and whether it runs alone; or says why it cannot be run.
Status admit(const AdmissionLimits& limits, std::int64_t now_ns, Request* request);

}  // namespace headrace
