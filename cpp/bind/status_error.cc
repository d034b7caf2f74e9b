// SPDX-License-Identifier: Apache-2.0

#include "bind/status_error.h"

#include <pybind11/gil_safe_call_once.h>

#include <cassert>

#include "bind/kept_object.h"

namespace py = pybind11;

namespace headrace {
namespace {

PYBIND11_CONSTINIT py::gil_safe_call_once_and_store<py::object> status_error_class;

// Made once for the process; every interpreter object of the module shows the same class.
const py::object& exception_class() {
  return status_error_class
      .call_once_and_store_result([] {
        py::dict members;
        members["code"] = static_cast<int>(Code::kUnknown);
        members["message"] = "";
        members["cause"] = py::none();
        PyObject* made = PyErr_NewExceptionWithDoc("headrace._core.StatusError",
                                                   "A native call failed: `code` is gRPC's number, `message` says why, "
                                                   "`cause` is what a callable raised.",
                                                   nullptr, members.ptr());
        if (made == nullptr) throw py::error_already_set();
        return py::reinterpret_steal<py::object>(made);
      })
      .get_stored();
}

// A StatusError object that nobody has raised yet.
py::object status_error(const Status& status) {
  // TensorFlow's messages may quote a client's bytes.
  py::object message = py::reinterpret_steal<py::object>(PyUnicode_DecodeUTF8(
      status.message().data(), static_cast<Py_ssize_t>(status.message().size()), "backslashreplace"));
  if (!message) throw py::error_already_set();
  py::object error = exception_class()(message);
  error.attr("code") = static_cast<int>(status.code());
  error.attr("message") = message;
  if (status.cause() != nullptr) error.attr("cause") = object_kept_by(status.cause());
  return error;
}

}  // namespace

void throw_status(const Status& status) {
  assert(!status.ok());
  throw StatusException(status);
}

void register_status_error(py::module_& module) {
  module.attr("StatusError") = exception_class();
  py::register_local_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const StatusException& exception) {
      py::object error = status_error(exception.status());
      PyErr_SetObject(exception_class().ptr(), error.ptr());
    }
  });
}

}  // namespace headrace
