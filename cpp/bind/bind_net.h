// SPDX-License-Identifier: Apache-2.0
//
// The native gRPC server as Python has it: GrpcServer and HandlerCall.

#pragma once

#include <pybind11/pybind11.h>

namespace headrace {

void register_net(pybind11::module_& module);

}  // namespace headrace
