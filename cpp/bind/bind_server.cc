// SPDX-License-Identifier: Apache-2.0

#include "bind/bind_server.h"

#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <string>

#include "bind/bind_model.h"
#include "bind/predict_queue.h"
#include "router.h"

namespace py = pybind11;

namespace headrace {

void register_server(py::module_& module) {
  py::class_<Router, std::shared_ptr<Router>>(module, "Router", py::is_final(), "Which lane a request goes to.")
      .def(py::init<>())
      .def(
          "add",
          [](Router& router, const std::shared_ptr<ModelHandle>& model, const std::optional<std::string>& name) {
            router.add(name.value_or(model->model().name()), model->shared());
          },
          py::arg("model").none(false), py::arg("name") = py::none(), py::keep_alive<1, 2>(),
          "Routes requests for `name` to the model.");

  py::class_<PredictQueue>(module, "PredictQueue", py::is_final(),
                           "PredictRequest messages in, PredictResponse messages out.")
      .def(py::init([](const std::shared_ptr<Router>& router) { return std::make_unique<PredictQueue>(router); }),
           py::arg("router").none(false), py::keep_alive<1, 2>())
      .def("fileno", &PredictQueue::fileno, "Readable while answers wait.")
      .def("submit", &PredictQueue::submit, py::arg("token"), py::arg("message"), py::arg("timeout") = py::none())
      .def("cancel", &PredictQueue::cancel, py::arg("token"))
      .def("take", &PredictQueue::take, "(token, code, message, response) of each answered request.")
      .def("pending", &PredictQueue::pending)
      .def("close", &PredictQueue::close, "Cancels what is pending.");
}

}  // namespace headrace
