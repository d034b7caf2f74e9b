// SPDX-License-Identifier: Apache-2.0
//
// TensorFlowSession: a SavedModel that TensorFlow has loaded, and runs of its graph.
//
// Thread safety: every function from any thread, run() from any number at once.
// Ownership: closes the session with its last reference; outputs of a run may outlive it.
// Progress: run() takes as long as TensorFlow does and cannot be interrupted.

#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/batch.h"
#include "core/status.h"
#include "core/tensor.h"
#include "run/tensorflow_library.h"

namespace headrace {

class TensorFlowSession {
 public:
  struct Device {
    std::string name;  // "/job:localhost/replica:0/task:0/device:CPU:0"
    std::string type;  // "CPU"
  };

  // Loads the MetaGraph of `export_dir` that has exactly these tags.  `config` is a serialized ConfigProto.
  static Status load(std::shared_ptr<const TensorFlowLibrary> library, const std::string& export_dir,
                     const std::vector<std::string>& tags, std::string_view config,
                     std::shared_ptr<TensorFlowSession>* out);

  ~TensorFlowSession();
  TensorFlowSession(const TensorFlowSession&) = delete;
  TensorFlowSession& operator=(const TensorFlowSession&) = delete;

  Status list_devices(std::vector<Device>* out) const;

  // The tensor "operation:index" of the graph; NOT_FOUND where there is none.
  Status find(const std::string& tensor_name, TF_Output* out) const;
  // Of what a fetch of it gives: a reference to a float is a float.
  DType type(TF_Output tensor) const;

  // Runs the graph: feeds `values[i]` as `inputs[i]` and fetches `outputs`, which are distinct and not fed.
  // TensorFlow reads the values' own memory where it is 64-byte aligned, and drops its copy of `keeper` when nothing
  // in TensorFlow refers to them any more, which may be long after the run.  `run_options` is a serialized RunOptions.
  Status run(std::span<const TF_Output> inputs, std::span<const TensorView> values,
             const std::shared_ptr<const void>& keeper, std::span<const TF_Output> outputs,
             std::string_view run_options, Outputs* fetched) const;

 private:
  explicit TensorFlowSession(std::shared_ptr<const TensorFlowLibrary> library);

  std::shared_ptr<const TensorFlowLibrary> library_;
  TF_Graph* graph_;
  TF_Session* session_ = nullptr;
};

}  // namespace headrace
