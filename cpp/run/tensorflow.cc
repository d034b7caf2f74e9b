// SPDX-License-Identifier: Apache-2.0
//
// Stage 6 of 8: a batch becomes a run of TensorFlow's graph.

#include "run/tensorflow.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace headrace {
namespace {

// Position of `tensor` in `tensors`, or their number.
std::size_t position(const std::vector<TF_Output>& tensors, TF_Output tensor) {
  const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const TF_Output& other) {
    return other.oper == tensor.oper && other.index == tensor.index;
  });
  return static_cast<std::size_t>(found - tensors.begin());
}

Status find(const TensorFlowSession& session, const TensorSpec& spec, const char* what, TF_Output* out) {
  const std::string where = std::string(what) + " \"" + spec.name + "\": ";
  if (Status status = session.find(spec.tensor_name, out); !status.ok())
    return {status.code(), where + status.message()};
  const DType type = session.type(*out);
  if (type == spec.dtype) return {};
  return FailedPrecondition(where + "the signature says " + std::string(dtype_name(spec.dtype)) + ", the graph has " +
                            std::string(dtype_name(type)));
}

}  // namespace

Status TensorFlowRunner::make(std::shared_ptr<const TensorFlowSession> session, const Signature& signature,
                              std::string run_options, std::shared_ptr<TensorFlowRunner>* out) {
  std::shared_ptr<TensorFlowRunner> runner(new TensorFlowRunner);
  for (const TensorSpec& spec : signature.inputs) {
    TF_Output tensor;
    if (Status status = find(*session, spec, "input", &tensor); !status.ok()) return status;
    if (position(runner->inputs_, tensor) != runner->inputs_.size())
      return FailedPrecondition("input \"" + spec.name + "\" is the same tensor as another input");
    runner->inputs_.push_back(tensor);
  }
  for (const TensorSpec& spec : signature.outputs) {
    TF_Output tensor;
    if (Status status = find(*session, spec, "output", &tensor); !status.ok()) return status;
    const std::size_t input = position(runner->inputs_, tensor);
    if (input != runner->inputs_.size()) {
      runner->sources_.push_back({true, input});
      continue;
    }
    const std::size_t fetch = position(runner->fetches_, tensor);
    if (fetch == runner->fetches_.size()) runner->fetches_.push_back(tensor);
    runner->sources_.push_back({false, fetch});
  }
  runner->session_ = std::move(session);
  runner->run_options_ = std::move(run_options);
  *out = std::move(runner);
  return {};
}

Status TensorFlowRunner::run(std::span<const TensorView> inputs, const std::shared_ptr<const void>& keeper,
                             Outputs* outputs) try {
  Outputs fetched;
  // Without anything to fetch there is nothing to run, and TensorFlow says so by an error.
  if (!fetches_.empty()) {
    Status status = session_->run(inputs_, inputs, keeper, fetches_, run_options_, &fetched);
    if (!status.ok()) return status;
  }
  outputs->owner = std::move(fetched.owner);
  outputs->tensors.clear();
  for (const Source& source : sources_)
    outputs->tensors.push_back(source.fed ? inputs[source.index] : fetched.tensors[source.index]);
  return {};
} catch (const std::bad_alloc&) {
  return ResourceExhausted("no memory to run a batch");
} catch (const std::exception& exception) {
  return Internal(std::string("TensorFlow threw: ") + exception.what());
}

}  // namespace headrace
