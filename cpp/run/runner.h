// SPDX-License-Identifier: Apache-2.0
//
// Runner: what turns the inputs of a batch into outputs.  TensorFlow is one; tests have others.
//
// Thread safety: run() from any number of executors at once.

#pragma once

#include "core/batch.h"
#include "core/status.h"

namespace headrace {

class Runner {
 public:
  virtual ~Runner() = default;

  // Stage 6: runs a gathered batch.  On OK fills `outputs` with one tensor per output of the signature, which may
  // alias the batch's inputs.  Whatever may read the inputs after run() returns holds batch.memory().
  // Does not throw; does not answer requests.
  virtual Status run(const Batch& batch, Outputs* outputs) = 0;
};

}  // namespace headrace
