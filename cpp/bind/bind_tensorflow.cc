// SPDX-License-Identifier: Apache-2.0

#include "bind/bind_tensorflow.h"

#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bind/gil.h"
#include "bind/ndarray.h"
#include "bind/status_error.h"
#include "core/signature.h"
#include "run/cuda_pinner.h"
#include "run/tensorflow.h"

namespace py = pybind11;

namespace headrace {
namespace {

// pybind11 keeps no pointers to const.
struct LoadedLibrary {
  std::shared_ptr<const TensorFlowLibrary> library;
};

LoadedLibrary load_library(const std::string& path) {
  LoadedLibrary loaded;
  Status status;
  {
    GilRelease release;
    status = TensorFlowLibrary::load(path, &loaded.library);
  }
  throw_unless_ok(status);
  return loaded;
}

std::shared_ptr<TensorFlowSession> load_saved_model(const LoadedLibrary& loaded, const std::string& export_dir,
                                                    const std::vector<std::string>& tags, const py::bytes& config) {
  std::shared_ptr<TensorFlowSession> session;
  const std::string config_bytes = config;
  Status status;
  {
    GilRelease release;
    status = TensorFlowSession::load(loaded.library, export_dir, tags, config_bytes, &session);
  }
  throw_unless_ok(status);
  return session;
}

std::vector<std::pair<std::string, std::string>> list_devices(const LoadedLibrary&, const TensorFlowSession& session) {
  std::vector<TensorFlowSession::Device> devices;
  throw_unless_ok(session.list_devices(&devices));
  std::vector<std::pair<std::string, std::string>> named;
  for (TensorFlowSession::Device& device : devices) named.emplace_back(std::move(device.name), std::move(device.type));
  return named;
}

// A spec of the graph's own tensor under its own name.
TensorSpec spec_of(const TensorFlowSession& session, const std::string& tensor_name) {
  TF_Output tensor;
  throw_unless_ok(session.find(tensor_name, &tensor));
  return {tensor_name, session.type(tensor), std::nullopt, tensor_name};
}

py::list run_session(const std::shared_ptr<TensorFlowSession>& session, const py::dict& feeds,
                     const std::vector<std::string>& fetches, const py::bytes& run_options) {
  Signature signature;
  const auto arrays = std::make_shared<std::vector<ArrayCopy>>();
  std::vector<TensorView> values;
  for (const auto& [name, value] : feeds) {
    signature.inputs.push_back(spec_of(*session, name.cast<std::string>()));
    const TensorSpec& spec = signature.inputs.back();
    arrays->push_back(ArrayCopy::from(value, spec.dtype, "feed \"" + spec.name + "\""));
    values.push_back(arrays->back().view());
  }
  for (const std::string& name : fetches) signature.outputs.push_back(spec_of(*session, name));
  std::shared_ptr<TensorFlowRunner> runner;
  throw_unless_ok(TensorFlowRunner::make(session, signature, run_options, &runner));
  Outputs outputs;
  Status status;
  {
    GilRelease release;
    status = runner->run(values, arrays, &outputs);
  }
  throw_unless_ok(status);
  py::list copies;
  for (const TensorView& output : outputs.tensors) copies.append(copy_to_array(output));
  return copies;
}

std::shared_ptr<Runner> make_runner(const std::shared_ptr<TensorFlowSession>& session, const Signature& signature,
                                    const py::bytes& run_options) {
  std::shared_ptr<TensorFlowRunner> runner;
  throw_unless_ok(TensorFlowRunner::make(session, signature, run_options, &runner));
  return runner;
}

}  // namespace

void register_tensorflow(py::module_& module) {
  py::class_<Runner, std::shared_ptr<Runner>>(module, "Runner", "What a lane's native executors run.");

  py::class_<TensorFlowSession, std::shared_ptr<TensorFlowSession>>(module, "Session", py::is_final(),
                                                                    "A loaded SavedModel.")
      .def("run", &run_session, py::arg("feeds"), py::arg("fetches"), py::arg("run_options") = py::bytes(),
           "Runs graph tensors by name.")
      .def("runner", &make_runner, py::arg("signature"), py::arg("run_options") = py::bytes(),
           "A runner of `signature`, whose specs carry tensor names.");

  py::class_<LoadedLibrary>(module, "TensorFlow", py::is_final(), "TensorFlow's C API, loaded once per process.")
      .def(py::init(&load_library), py::arg("library_path"))
      .def_property_readonly("version", [](const LoadedLibrary& loaded) { return loaded.library->version(); })
      .def("load_saved_model", &load_saved_model, py::arg("export_dir"), py::arg("tags"), py::arg("config"),
           "Loads the MetaGraph with exactly these tags.")
      .def("list_devices", &list_devices, py::arg("session"), "(name, type) of each device.");

  py::class_<CudaPinner, std::shared_ptr<CudaPinner>>(module, "SlabPinner", py::is_final(),
                                                      "Registers slabs with a GPU through libcuda.")
      .def(py::init<const std::string&>(), py::arg("library_path") = "libcuda.so.1", py::call_guard<GilRelease>())
      .def_property_readonly("available", [](const CudaPinner& pinner) { return pinner.status().ok(); })
      .def_property_readonly("reason", [](const CudaPinner& pinner) { return pinner.status().message(); });
}

}  // namespace headrace
