// SPDX-License-Identifier: Apache-2.0
//
// Python's Lane: a lane together with the model that it belongs to.

#pragma once

#include <memory>

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

}  // namespace headrace
