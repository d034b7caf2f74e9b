// SPDX-License-Identifier: Apache-2.0
//
// The load generator: BenchClient, BenchReport and LatencyHistogram.

#pragma once

#include <pybind11/pybind11.h>

namespace headrace {

void register_bench(pybind11::module_& module);

}  // namespace headrace
