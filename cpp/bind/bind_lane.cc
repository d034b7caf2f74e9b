// SPDX-License-Identifier: Apache-2.0

#include "bind/bind_lane.h"

#include <pybind11/stl.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bind/array_request.h"
#include "bind/gil.h"
#include "bind/seconds.h"
#include "bind/status_error.h"
#include "core/stats.h"

namespace py = pybind11;

namespace headrace {
namespace {

// Ctrl-C interrupts a wait within this time.
constexpr std::int64_t kSignalCheckNs = 50'000'000;

struct Reply {
  LaneHandle lane;
  ArrayRequestPtr request;
};

std::string name_set(const std::vector<TensorSpec>& specs) {
  std::string names = "{";
  for (const TensorSpec& spec : specs) names += (names.size() > 1 ? "," : "") + spec.name;
  return names + "}";
}

std::vector<ArrayCopy> copy_inputs(const Signature& signature, const py::dict& inputs) {
  std::vector<ArrayCopy> copies;
  for (const TensorSpec& spec : signature.inputs) {
    const py::str name(spec.name);
    if (!inputs.contains(name))
      throw_status(
          InvalidArgument("input \"" + spec.name + "\" is missing; the signature has " + name_set(signature.inputs)));
    copies.push_back(ArrayCopy::from(inputs[name], spec.dtype, "input \"" + spec.name + "\""));
  }
  for (const auto& [name, value] : inputs) {
    if (!py::isinstance<py::str>(name))
      throw_status(InvalidArgument("an input is named by a str; got " + py::cast<std::string>(py::repr(name))));
    if (signature.input_index(py::cast<std::string>(name)) < 0)
      throw_status(InvalidArgument("there is no input \"" + py::cast<std::string>(name) + "\"; the signature has " +
                                   name_set(signature.inputs)));
  }
  return copies;
}

Reply submit(const LaneHandle& handle, const py::dict& inputs, std::optional<double> timeout) {
  Lane& lane = handle.get();
  ArrayRequestPtr request(new ArrayRequest(copy_inputs(lane.signature(), inputs)));
  request->deadline_ns = deadline_in(timeout);
  Status status;
  {
    GilRelease release;
    status = lane.submit(request);
  }
  throw_unless_ok(status);
  return {handle, std::move(request)};
}

bool wait(const Reply& reply, std::optional<double> timeout) {
  const std::int64_t deadline_ns = deadline_in(timeout);
  reply.lane.get();
  for (;;) {
    const std::int64_t now_ns = SystemClock().now_ns();
    bool done = false;
    {
      GilRelease release;
      done = reply.request->wait_until(std::min(deadline_ns, now_ns + kSignalCheckNs));
    }
    if (done) return true;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    if (SystemClock().now_ns() >= deadline_ns) return false;
  }
}

bool cancel(const Reply& reply) {
  Lane& lane = reply.lane.get();
  GilRelease release;
  return lane.cancel(reply.request);
}

py::dict outputs(const Reply& reply) {
  if (!reply.request->was_done()) throw_status(FailedPrecondition("the request is not answered yet"));
  throw_unless_ok(reply.request->status);
  py::dict named;
  std::vector<py::array> arrays = reply.request->take_outputs();
  for (std::size_t i = 0; i < arrays.size(); ++i)
    named[py::str(reply.lane.lane->signature().outputs[i].name)] = arrays[i];
  return named;
}

py::dict stats(const LaneHandle& handle) {
  const Lane& lane = handle.get();
  const Stats& stats = lane.stats();
  py::dict counters;
  const auto put = [&counters](const char* name, std::int64_t value) { counters[name] = value; };
  put("requests", stats.requests.value());
  put("rejected", stats.rejected.value());
  put("invalid", stats.invalid.value());
  put("ok", stats.ok.value());
  put("failed", stats.failed.value());
  put("expired", stats.expired.value());
  put("cancelled", stats.cancelled.value());
  put("closed", stats.closed.value());
  put("waiting_rows", lane.was_waiting_rows());
  put("batches", stats.batches.value());
  put("batch_requests", stats.batch_requests.value());
  put("batch_rows", stats.batch_rows.value());
  put("wait_ns", stats.wait_ns.value());
  put("run_ns", stats.run_ns.value());
  put("slabs_allocated", lane.slabs().allocated());
  put("slabs_pinned", lane.slabs().pinned());
  put("slabs_held", stats.slabs_held.value());
  py::dict by_reason;
  for (int reason = 0; reason < kBatchReasons; ++reason)
    by_reason[py::str(std::string(batch_reason_name(static_cast<BatchReason>(reason))))] =
        stats.batches_by_reason[static_cast<std::size_t>(reason)].value();
  counters["batches_by_reason"] = by_reason;
  py::dict by_rows;
  for (std::size_t rows = 0; rows < stats.batches_by_rows.size(); ++rows)
    if (const std::int64_t count = stats.batches_by_rows[rows].value(); count != 0) by_rows[py::int_(rows)] = count;
  counters["batches_by_rows"] = by_rows;
  return counters;
}

}  // namespace

void register_lane(py::module_& module) {
  py::class_<Reply>(module, "Reply", py::is_final(), "The promise of the outputs of one request.")
      .def("wait", &wait, py::arg("timeout") = py::none(), "Whether it is answered within `timeout` seconds.")
      .def("done", [](const Reply& reply) { return reply.request->was_done(); })
      .def("cancel", &cancel, "Whether this call answered it.")
      .def("outputs", &outputs, "Arrays of the caller's own, by name.");

  py::class_<LaneHandle>(module, "Lane", py::is_final(), "One signature's path from requests to replies.")
      .def_property_readonly("signature", [](const LaneHandle& handle) { return handle.lane->signature(); })
      .def_property_readonly("options", [](const LaneHandle& handle) { return handle.lane->options(); })
      .def("submit", &submit, py::arg("inputs"), py::arg("timeout") = py::none(), "Queues one request.")
      .def("stats", &stats, "Counters since the start.");
}

}  // namespace headrace
