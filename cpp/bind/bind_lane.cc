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
#include "bind/kept_object.h"
#include "bind/ndarray.h"
#include "bind/reply_queue.h"
#include "bind/seconds.h"
#include "bind/slot.h"
#include "bind/status_error.h"
#include "core/stats.h"

namespace py = pybind11;

namespace headrace {
namespace {

// Ctrl-C interrupts a wait within this time.
constexpr std::int64_t kSignalCheckNs = 50'000'000;

std::string name_set(const std::vector<TensorSpec>& specs) {
  std::string names = "{";
  for (const TensorSpec& spec : specs) names += (names.size() > 1 ? "," : "") + spec.name;
  return names + "}";
}

// Whatever the keys are: a str need not be UTF-8.
std::string text_of(py::handle key) {
  const bool is_str = py::isinstance<py::str>(key);
  PyObject* text = is_str ? key.inc_ref().ptr() : PyObject_Repr(key.ptr());
  if (text == nullptr) throw py::error_already_set();
  const py::object owned = py::reinterpret_steal<py::object>(text);
  PyObject* bytes = PyUnicode_AsEncodedString(text, "utf-8", "backslashreplace");
  if (bytes == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::bytes>(bytes);
}

void check_names(const Signature& signature, const py::dict& inputs) {
  for (const auto& [name, value] : inputs) {
    if (!py::isinstance<py::str>(name))
      throw_status(InvalidArgument("an input is named by a str; got " + text_of(name)));
    if (signature.input_index(text_of(name)) < 0) {
      throw_status(InvalidArgument("there is no input \"" + text_of(name) + "\"; the signature has " +
                                   name_set(signature.inputs)));
    }
  }
}

// An array that is a view of less memory, such as numpy.broadcast_to's, may be larger than all there is.
void check_size(const TensorSpec& spec, py::handle value, std::size_t bytes_max) {
  if (!py::isinstance<py::array>(value)) return;
  const auto bytes = static_cast<std::size_t>(py::reinterpret_borrow<py::array>(value).nbytes());
  if (bytes <= bytes_max) return;
  throw_status(InvalidArgument("input \"" + spec.name + "\" has " + std::to_string(bytes) +
                               " bytes; the largest batch may have " + std::to_string(bytes_max) +
                               " (slab_bytes_max)"));
}

// The inputs in the signature's order, as ArrayCopy or BorrowedArray has them, and views of them.
template <typename Array>
struct Inputs {
  std::vector<Array> arrays;
  std::vector<TensorView> views;

  Inputs(const Lane& lane, const py::dict& inputs, Casting casting) {
    const Signature& signature = lane.signature();
    arrays.reserve(signature.inputs.size());
    views.reserve(signature.inputs.size());
    for (const TensorSpec& spec : signature.inputs) {
      PyObject* value = PyDict_GetItemString(inputs.ptr(), spec.name.c_str());
      if (value != nullptr) {
        check_size(spec, value, lane.options().slab_bytes_max);
        arrays.push_back(Array::from(value, spec.dtype, "input \"" + spec.name + "\"", casting));
        views.push_back(arrays.back().view());
      } else if (spec.optional) {
        views.emplace_back();
      } else {
        throw_status(
            InvalidArgument("input \"" + spec.name + "\" is missing; the signature has " + name_set(signature.inputs)));
      }
    }
    if (arrays.size() != inputs.size()) check_names(signature, inputs);
  }
};

Casting casting(bool cast) { return cast ? Casting::kSameKind : Casting::kNone; }

Reply submit_arrays(const LaneHandle& handle, const py::dict& inputs, std::optional<double> timeout, bool cast,
                    bool announce) {
  release_dropped_objects();
  auto copied = std::make_shared<Inputs<ArrayCopy>>(handle.get(), inputs, casting(cast));
  std::vector<TensorView> views = std::move(copied->views);
  return submit_request(handle, new ArrayRequest(std::move(views), std::move(copied)), timeout,
                        announce ? Announce::kNow : Announce::kSoon);
}

// Waits without the GIL.  False at the deadline; throws what a signal's handler threw.
bool wait(ArrayRequest& request, std::int64_t deadline_ns) {
  if (request.was_done()) return true;
  const bool hears_signals = is_main_thread();
  for (;;) {
    const std::int64_t now_ns = SystemClock().now_ns();
    bool done = false;
    {
      GilRelease release;
      done = request.wait_until(hears_signals ? std::min(deadline_ns, now_ns + kSignalCheckNs) : deadline_ns);
    }
    if (done) return true;
    if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    if (SystemClock().now_ns() >= deadline_ns) return false;
  }
}

bool wait_reply(const Reply& reply, std::optional<double> timeout) {
  reply.lane.get();
  return wait(*reply.request, deadline_in(timeout));
}

bool cancel(const Reply& reply) {
  Lane& lane = reply.lane.get();
  GilRelease release;
  return lane.cancel(reply.request);
}

py::dict outputs(const Lane& lane, ArrayRequest& request) {
  throw_unless_ok(request.status);
  py::dict named;
  std::vector<py::array> arrays = request.take_outputs();
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    const std::string& name =
        request.output_names != nullptr ? (*request.output_names)[i] : lane.signature().outputs[i].name;
    named[py::str(name)] = std::move(arrays[i]);
  }
  return named;
}

py::dict reply_outputs(const Reply& reply) {
  if (!reply.request->was_done()) throw_status(FailedPrecondition("the request is not answered yet"));
  return outputs(*reply.lane.lane, *reply.request);
}

// Whoever waits lends its arrays instead of copying them, and takes them back before it returns.
class Lent {
 public:
  explicit Lent(ArrayRequestPtr request) : request_(std::move(request)) {}
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;
  ~Lent() {
    if (request_->inputs_were_free()) return;
    GilRelease release;
    request_->wait_inputs_free();
  }

 private:
  const ArrayRequestPtr request_;
};

py::dict predict(const LaneHandle& handle, const py::dict& inputs, std::optional<double> timeout, bool cast) {
  Lane& lane = handle.get();
  release_dropped_objects();
  Inputs<BorrowedArray> borrowed(lane, inputs, casting(cast));
  Callers& callers = handle.model->callers();
  Status status;
  ArrayRequestPtr request(new ArrayRequest(std::move(borrowed.views), callers));
  const Lent lent(request);
  request->deadline_ns = deadline_in(timeout);
  const Callers::Caller caller(callers, lane);
  if (caller.alone()) {
    GilRelease release;
    status = handle.model->model().submit_or_run(lane, request);
  } else {
    status = callers.all_wait() ? lane.submit(request) : lane.submit_soon(request);  // neither waits for anything
  }
  if (!status.ok()) {
    callers.answered();
    throw_status(status);
  }
  try {
    wait(*request, kNever);
  } catch (const py::error_already_set&) {
    GilRelease release;
    lane.cancel(request);
    throw;
  }
  return outputs(lane, *request);
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

Reply submit_request(const LaneHandle& handle, ArrayRequestPtr request, std::optional<double> timeout,
                     Announce announce) {
  Lane& lane = handle.get();
  request->deadline_ns = deadline_in(timeout);
  // Neither waits for anything.
  throw_unless_ok(announce == Announce::kNow ? lane.submit(request) : lane.submit_soon(request));
  return {handle, std::move(request)};
}

void register_lane(py::module_& module) {
  py::class_<Reply>(module, "Reply", py::is_final(), "The promise of the outputs of one request.")
      .def("wait", &wait_reply, py::arg("timeout") = py::none(), "Whether it is answered within `timeout` seconds.")
      .def("done", [](const Reply& reply) { return reply.request->was_done(); })
      .def("cancel", &cancel, "Whether this call answered it.")
      .def("outputs", &reply_outputs, "Arrays of the caller's own, by name.");

  py::class_<ReplyQueue>(module, "ReplyQueue", py::is_final(), "Tells one reader which replies have been answered.")
      .def(py::init<>())
      .def("fileno", &ReplyQueue::fileno, "Readable while answers wait.")
      .def(
          "watch", [](ReplyQueue& queue, const Reply& reply, py::object token) { queue.watch(*reply.request, token); },
          py::arg("reply"), py::arg("token"), "take() hands out `token` when the reply is answered.")
      .def("put", &ReplyQueue::put, py::arg("token"), "take() hands out `token`.")
      .def("take", &ReplyQueue::take, "The tokens since the last call.");

  py::class_<ReservedSlot>(module, "Slot", py::is_final(), "A private buffer for the rows of a request.")
      .def_property_readonly("arrays", &ReservedSlot::arrays, "Views of the buffer, by input name.")
      .def("submit", &ReservedSlot::submit, py::arg("timeout") = py::none(), "Queues the request, once.");

  py::class_<LaneHandle>(module, "Lane", py::is_final(), "One signature's path from requests to replies.")
      .def_property_readonly("signature", [](const LaneHandle& handle) { return handle.lane->signature(); })
      .def_property_readonly("options", [](const LaneHandle& handle) { return handle.lane->options(); })
      .def("predict", &predict, py::arg("inputs"), py::arg("timeout") = py::none(), py::arg("cast") = false,
           "Queues one request and waits for its outputs.")
      .def("submit", &submit_arrays, py::arg("inputs"), py::arg("timeout") = py::none(), py::arg("cast") = false,
           py::arg("announce") = true, "Queues one request.")
      .def(
          "announce", [](const LaneHandle& handle) { handle.get().announce(); },
          "Wakes an executor for what was queued without.")
      .def("reserve", &ReservedSlot::reserve, py::arg("rows"), py::arg("shapes") = py::none(),
           py::arg("dtypes") = py::none(), "A buffer for the rows of a request.")
      .def("stats", &stats, "Counters since the start.");
}

}  // namespace headrace
