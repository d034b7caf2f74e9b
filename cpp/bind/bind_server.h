// SPDX-License-Identifier: Apache-2.0
//
// What a transport that is written in Python needs: Router and PredictQueue.

#pragma once

#include <pybind11/pybind11.h>

namespace headrace {

void register_server(pybind11::module_& module);

}  // namespace headrace
