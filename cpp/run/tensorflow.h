// SPDX-License-Identifier: Apache-2.0
//
// TensorFlowRunner: runs batches of one signature of a SavedModel.
//
// Thread safety: as Runner.
// Ownership: keeps the session.  TensorFlow keeps the slab of a batch for as long as any of its tensors shares it:
//   a variable may adopt the very buffer that was fed (`v.assign(x)`).
// Invariant: an output that is a fed tensor is answered from the batch's input; of outputs that are one tensor of the
//   graph, one is fetched.

#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/signature.h"
#include "run/runner.h"
#include "run/tensorflow_session.h"

namespace headrace {

class TensorFlowRunner final : public Runner {
 public:
  // Finds the tensors that the signature names and checks their types.  `run_options` is a serialized RunOptions.
  static Status make(std::shared_ptr<const TensorFlowSession> session, const Signature& signature,
                     std::string run_options, std::shared_ptr<TensorFlowRunner>* out);

  Status run(const Batch& batch, Outputs* outputs) override { return run(batch.inputs(), batch.memory(), outputs); }

  // Runs `inputs`, in the signature's order, whose memory lives as long as `keeper`.  Outputs that are inputs are
  // views of these, which `outputs->owner` does not keep.
  Status run(std::span<const TensorView> inputs, const std::shared_ptr<const void>& keeper, Outputs* outputs);

 private:
  // Where an output of the signature comes from.
  struct Source {
    bool fed;           // an input of the batch, else a fetched tensor
    std::size_t index;  // among these
  };

  TensorFlowRunner() = default;

  std::shared_ptr<const TensorFlowSession> session_;
  std::string run_options_;
  std::vector<TF_Output> inputs_;
  std::vector<TF_Output> fetches_;
  std::vector<Source> sources_;
};

}  // namespace headrace
