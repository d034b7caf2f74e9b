// SPDX-License-Identifier: Apache-2.0
//
// headrace._core: registers the classes, and does nothing else.

#include <pybind11/pybind11.h>

#include "bind/bind_bench.h"
#include "bind/bind_model.h"
#include "bind/bind_net.h"
#include "bind/bind_server.h"
#include "bind/bind_tensorflow.h"
#include "bind/gil.h"
#include "bind/ndarray.h"
#include "bind/status_error.h"

PYBIND11_MODULE(_core, module) {
  module.doc() = "The native core of Headrace.";
  module.attr("__version__") = HEADRACE_VERSION;
  headrace::prepare_arrays();
  headrace::register_status_error(module);
  headrace::register_signature(module);
  headrace::register_tensorflow(module);
  headrace::register_lane(module);
  headrace::register_model(module);
  headrace::register_server(module);
  headrace::register_net(module);
  headrace::register_bench(module);
  module.def("forbid_gil", &headrace::forbid_gil,
             "From now on other threads that come back from native code sleep for ever.");
}
