// SPDX-License-Identifier: Apache-2.0
//
// The classes of signatures, lanes and models: TensorSpec, Signature, LaneOptions, Timer, Model, Lane, Reply, Batch.

#pragma once

#include <pybind11/pybind11.h>

#include <memory>

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
  // A thread inside a call that waits for its reply.  Only one who is alone may run its batch itself: with others, who
  // wait for their turn in Python, a thread that never sleeps would keep them from it and run batches of one.
  // The GIL guards the count.
  class Caller {
   public:
    explicit Caller(ModelHandle& model) : model_(model), alone_(model.callers_++ == 0) {}
    Caller(const Caller&) = delete;
    Caller& operator=(const Caller&) = delete;
    ~Caller() { --model_.callers_; }
    bool alone() const { return alone_; }

   private:
    ModelHandle& model_;
    const bool alone_;
  };

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

 private:
  MadeHere made_;
  std::shared_ptr<Model> model_;
  int callers_ = 0;
};

void register_signature(pybind11::module_& module);
void register_lane(pybind11::module_& module);
void register_model(pybind11::module_& module);

}  // namespace headrace
