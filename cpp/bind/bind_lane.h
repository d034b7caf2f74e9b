// SPDX-License-Identifier: Apache-2.0
//
// Python's Lane, a lane together with the model that it belongs to, and its Reply.

#pragma once

#include <memory>
#include <optional>

#include "bind/array_request.h"
#include "bind/bind_model.h"
#include "lane.h"

namespace headrace {

struct LaneHandle {
  std::shared_ptr<ModelHandle> model;
  Lane* lane = nullptr;

  // Throws FAILED_PRECONDITION in a forked child.
  Lane& get() const {
    model->model();
    return *lane;
  }
};

struct Reply {
  LaneHandle lane;
  ArrayRequestPtr request;
};

enum class Announce { kNow, kSoon };

// Queues the request; throws what refuses it.  `timeout`, in seconds, becomes its deadline.
Reply submit_request(const LaneHandle& handle, ArrayRequestPtr request, std::optional<double> timeout,
                     Announce announce = Announce::kNow);

}  // namespace headrace
