// SPDX-License-Identifier: Apache-2.0
//
// The classes of signatures, lanes and models: TensorSpec, Signature, LaneOptions, Timer, Model, Lane, Reply, Batch.

#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "bind/callers.h"
#include "bind/fork.h"
#include "core/timer.h"
#include "model.h"

namespace headrace {

// Python's Timer.
struct TimerHandle {
  TimerHandle();
  ~TimerHandle();

  MadeHere made;
  std::shared_ptr<Timer> timer;
};

// Python's Model: closes it with the last reference.
class ModelHandle {
 public:
  ModelHandle(std::string name, std::int64_t version, const TimerHandle& timer);
  ~ModelHandle();
  ModelHandle(const ModelHandle&) = delete;
  ModelHandle& operator=(const ModelHandle&) = delete;

  // Throws FAILED_PRECONDITION in a forked child.
  Model& model() const {
    made_.check("model");
    return *model_;
  }
  bool still_here() const { return made_.still_here(); }
  const std::shared_ptr<Model>& shared() const { return model_; }
  Callers& callers() { return callers_; }

 private:
  MadeHere made_;
  std::shared_ptr<Model> model_;
  Callers callers_;
};

void register_signature(pybind11::module_& module);
void register_lane(pybind11::module_& module);
void register_model(pybind11::module_& module);

}  // namespace headrace
