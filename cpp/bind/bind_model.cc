// SPDX-License-Identifier: Apache-2.0

#include "bind/bind_model.h"

#include <pybind11/stl.h>

#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "bind/bind_lane.h"
#include "bind/gil.h"
#include "bind/kept_object.h"
#include "bind/ndarray.h"
#include "bind/seconds.h"
#include "bind/status_error.h"
#include "run/cuda_pinner.h"

namespace py = pybind11;

namespace headrace {
namespace {

const SystemClock kSystemClock;

// Keeps for ever what a forked child must not destroy: it would join threads that are not there.
template <typename T>
void leak(T kept) {
  new T(std::move(kept));
}

// A batch in the hands of a Python executor; failed if it is dropped.
class BatchHandle {
 public:
  BatchHandle(LaneHandle lane, std::unique_ptr<Batch> batch) : lane_(std::move(lane)), batch_(std::move(batch)) {}
  BatchHandle(BatchHandle&&) = default;
  ~BatchHandle() {
    if (batch_ == nullptr) return;
    if (!lane_.model->still_here()) {
      leak(std::move(batch_));
      return;
    }
    GilRelease release;
    lane_.lane->finish(std::move(batch_), Internal("the executor dropped the batch"), {});
  }

  const LaneHandle& lane() const { return lane_; }

  const Batch& batch() const {
    if (batch_ == nullptr) throw_status(FailedPrecondition("the batch was given back already"));
    return *batch_;
  }

  py::dict inputs() const {
    py::dict named;
    const std::vector<TensorSpec>& specs = lane_.lane->signature().inputs;
    for (std::size_t i = 0; i < specs.size(); ++i)
      if (const TensorView& input = batch().inputs()[i]; !input.is_absent())
        named[py::str(specs[i].name)] = view_of(input, batch().memory());
    return named;
  }

  void finish(const py::sequence& values, std::optional<std::vector<std::string>> names) {
    batch();
    lane_.get();
    const std::vector<TensorSpec>& specs = lane_.lane->signature().outputs;
    if (names.has_value() != specs.empty())
      throw_status(InvalidArgument("outputs have names if the signature leaves them open, and only then"));
    const std::size_t count = names ? names->size() : specs.size();
    if (values.size() != count) {
      throw_status(InvalidArgument("got " + std::to_string(values.size()) + " outputs, " +
                                   (names ? "names for " : "signature has ") + std::to_string(count)));
    }
    std::vector<BorrowedArray> arrays;
    Outputs outputs;
    for (std::size_t i = 0; i < count; ++i) {
      const DType dtype = names ? DType::kInvalid : specs[i].dtype;
      const std::string& name = names ? (*names)[i] : specs[i].name;
      arrays.push_back(BorrowedArray::from(values[i], dtype, "output \"" + name + "\""));
    }
    if (names) outputs.names = std::make_shared<const std::vector<std::string>>(std::move(*names));
    for (const BorrowedArray& array : arrays) outputs.tensors.push_back(array.view());
    GilRelease release;
    lane_.lane->finish(std::move(batch_), {}, std::move(outputs));
  }

  void fail(int code, std::string message, py::object cause) {
    batch();
    if (code <= static_cast<int>(Code::kOk) || code > static_cast<int>(Code::kUnauthenticated))
      throw_status(InvalidArgument("an error has a code from 1 to 16; was " + std::to_string(code)));
    lane_.get();
    Status status(static_cast<Code>(code), std::move(message));
    if (!cause.is_none()) status.set_cause(kept_object(std::move(cause)));
    GilRelease release;
    lane_.lane->finish(std::move(batch_), status, {});
  }

 private:
  LaneHandle lane_;
  std::unique_ptr<Batch> batch_;
};

std::optional<BatchHandle> next_batch(const std::shared_ptr<ModelHandle>& handle) {
  Model& model = handle->model();
  release_dropped_objects();
  Lane* lane = nullptr;
  std::unique_ptr<Batch> batch;
  {
    GilRelease release;
    while (batch == nullptr && (lane = model.next_lane()) != nullptr) batch = lane->next();
  }
  if (batch == nullptr) return std::nullopt;
  return BatchHandle({handle, lane}, std::move(batch));
}

LaneHandle add_lane(const std::shared_ptr<ModelHandle>& handle, const Signature& signature, const LaneOptions& options,
                    std::shared_ptr<Runner> runner, std::shared_ptr<CudaPinner> pinner) {
  if (pinner != nullptr && !pinner->status().ok()) pinner = nullptr;
  return {handle, &handle->model().add_lane(signature, options, std::move(runner), std::move(pinner))};
}

void start_model(const ModelHandle& handle, int num_batch_threads) {
  Model& model = handle.model();
  if (num_batch_threads < 1)
    throw_status(InvalidArgument("num_batch_threads must be positive; was " + std::to_string(num_batch_threads)));
  if (!model.has_runners())
    throw_status(FailedPrecondition("a lane has no runner: native executors need one, Python ones call next()"));
  try {
    model.start(num_batch_threads);
  } catch (const std::system_error& error) {
    throw_status(ResourceExhausted("cannot start " + std::to_string(num_batch_threads) +
                                   " executor threads: " + error.what() + "; lower num_batch_threads"));
  }
}

bool close_model(const ModelHandle& handle, double drain_timeout) {
  Model& model = handle.model();
  GilRelease release;
  return model.close(seconds_ns(drain_timeout));
}

}  // namespace

TimerHandle::TimerHandle() : timer(std::make_shared<Timer>(kSystemClock)) { timer->start(); }

TimerHandle::~TimerHandle() {
  if (!made.still_here()) leak(std::move(timer));
}

ModelHandle::ModelHandle(std::string name, std::int64_t version, const TimerHandle& timer) {
  timer.made.check("timer");
  model_ = std::make_shared<Model>(std::move(name), version, timer.timer, kSystemClock);
}

ModelHandle::~ModelHandle() {
  if (!made_.still_here()) {
    leak(std::move(model_));
    return;
  }
  GilRelease release;
  model_->close(0);
}

void register_model(py::module_& module) {
  py::class_<TimerHandle>(module, "Timer", py::is_final(), "The thread that serves windows and deadlines.")
      .def(py::init<>())
      .def(
          "close",
          [](const TimerHandle& handle) {
            if (!handle.made.still_here()) return;
            GilRelease release;
            handle.timer->stop();
          },
          "Stops the thread.");

  py::class_<BatchHandle>(module, "Batch", py::is_final(), "A gathered batch in the hands of a Python executor.")
      .def_property_readonly("lane", &BatchHandle::lane)
      .def_property_readonly("rows", [](const BatchHandle& handle) { return handle.batch().rows(); })
      .def_property_readonly("slot_rows",
                             [](const BatchHandle& handle) {
                               std::vector<std::int64_t> rows;
                               for (const Slot& slot : handle.batch().slots()) rows.push_back(slot.rows);
                               return rows;
                             })
      .def_property_readonly("inputs", &BatchHandle::inputs, "Views of the slab, by input name.")
      .def("finish", &BatchHandle::finish, py::arg("outputs"), py::arg("names") = py::none(),
           "Answers every request from its rows of the outputs.")
      .def("fail", &BatchHandle::fail, py::arg("code"), py::arg("message"), py::arg("cause") = py::none(),
           "Answers every request with an error.");

  py::class_<ModelHandle, std::shared_ptr<ModelHandle>>(module, "Model", py::is_final(),
                                                        "A loaded model version: its lanes and their executors.")
      .def(py::init<std::string, std::int64_t, const TimerHandle&>(), py::arg("name"), py::arg("version"),
           py::arg("timer"))
      .def_property_readonly("name", [](const ModelHandle& handle) { return handle.model().name(); })
      .def_property_readonly("version", [](const ModelHandle& handle) { return handle.model().version(); })
      .def("add_lane", &add_lane, py::arg("signature"), py::arg("options"), py::arg("runner") = nullptr,
           py::arg("pinner") = nullptr, "Adds a lane; before start() or the first next().")
      .def("start", &start_model, py::arg("num_batch_threads"), "Starts native executors.")
      .def("next", &next_batch, "Waits for a gathered batch; None once the model is closed and drained.")
      .def("close", &close_model, py::arg("drain_timeout"), "Drains the lanes and stops the executors.");
}

}  // namespace headrace
