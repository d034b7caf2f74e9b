// SPDX-License-Identifier: Apache-2.0

#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bind/bind_model.h"
#include "bind/status_error.h"
#include "core/signature.h"
#include "lane.h"

namespace py = pybind11;

namespace headrace {
namespace {

LaneOptions make_options(std::int64_t max_batch_size, std::int64_t batch_timeout_micros,
                         std::int64_t max_enqueued_batches, const std::string& policy, bool batched,
                         std::size_t slab_bytes_max, std::size_t waiting_bytes_max, bool log_batches) {
  const auto require = [](bool holds, const std::string& message) {
    if (!holds) throw_status(InvalidArgument(message));
  };
  require(max_batch_size > 0, "max_batch_size must be positive; was " + std::to_string(max_batch_size));
  require(batch_timeout_micros >= 0,
          "batch_timeout_micros must be non-negative; was " + std::to_string(batch_timeout_micros));
  require(max_enqueued_batches > 0,
          "max_enqueued_batches must be positive; was " + std::to_string(max_enqueued_batches));
  require(max_enqueued_batches <= INT64_MAX / max_batch_size,
          "max_enqueued_batches x max_batch_size is too large; lower one of them");
  require(policy == "adaptive" || policy == "timeout", "policy must be adaptive or timeout; was " + policy);
  LaneOptions options;
  options.policy.policy = policy == "timeout" ? Policy::kTimeout : Policy::kAdaptive;
  options.policy.max_batch_size = max_batch_size;
  options.policy.batch_timeout_ns = batch_timeout_micros > kNever / 1000 ? kNever : batch_timeout_micros * 1000;
  options.max_enqueued_batches = max_enqueued_batches;
  options.batched = batched;
  options.slab_bytes_max = slab_bytes_max;
  options.waiting_bytes_max = waiting_bytes_max;
  options.log_batches = log_batches;
  return options;
}

}  // namespace

void register_signature(py::module_& module) {
  py::class_<TensorSpec>(module, "TensorSpec", py::is_final(), "One input or output.")
      .def(
          py::init([](std::string name, int dtype, std::optional<Shape> shape, std::string tensor_name, bool optional) {
            return TensorSpec{std::move(name), static_cast<DType>(dtype), std::move(shape), std::move(tensor_name),
                              optional};
          }),
          py::arg("name"), py::arg("dtype"), py::arg("shape"), py::arg("tensor_name") = "", py::arg("optional") = false)
      .def_readonly("name", &TensorSpec::name)
      .def_property_readonly("dtype", [](const TensorSpec& spec) { return static_cast<int>(spec.dtype); })
      .def_readonly("shape", &TensorSpec::shape)
      .def_readonly("tensor_name", &TensorSpec::tensor_name)
      .def_readonly("optional", &TensorSpec::optional);

  py::class_<Signature>(module, "Signature", py::is_final(), "The inputs and outputs of one callable of a model.")
      .def(py::init([](std::string name, std::vector<TensorSpec> inputs, std::vector<TensorSpec> outputs) {
             return Signature{std::move(name), std::move(inputs), std::move(outputs)};
           }),
           py::arg("name"), py::arg("inputs"), py::arg("outputs"))
      .def_readonly("name", &Signature::name)
      .def_readonly("inputs", &Signature::inputs)
      .def_readonly("outputs", &Signature::outputs);

  py::class_<LaneOptions>(module, "LaneOptions", py::is_final(), "The limits and policy of one lane.")
      .def(py::init(&make_options), py::kw_only(), py::arg("max_batch_size"), py::arg("batch_timeout_micros"),
           py::arg("max_enqueued_batches"), py::arg("policy"), py::arg("batched"), py::arg("slab_bytes_max"),
           py::arg("waiting_bytes_max"), py::arg("log_batches") = false)
      .def_property_readonly("max_batch_size", [](const LaneOptions& options) { return options.policy.max_batch_size; })
      .def_property_readonly("batch_timeout_micros",
                             [](const LaneOptions& options) { return options.policy.batch_timeout_ns / 1000; })
      .def_readonly("max_enqueued_batches", &LaneOptions::max_enqueued_batches)
      .def_property_readonly(
          "policy",
          [](const LaneOptions& options) { return options.policy.policy == Policy::kTimeout ? "timeout" : "adaptive"; })
      .def_readonly("batched", &LaneOptions::batched)
      .def_readonly("slab_bytes_max", &LaneOptions::slab_bytes_max)
      .def_readonly("waiting_bytes_max", &LaneOptions::waiting_bytes_max)
      .def_readonly("log_batches", &LaneOptions::log_batches);
}

}  // namespace headrace
