// SPDX-License-Identifier: Apache-2.0
//
// TensorFlow's C API, its runners and the GPU's pinner as the classes TensorFlow, Session, Runner and SlabPinner.
// A function that takes one of them takes shared_ptr<Runner> or shared_ptr<CudaPinner>.

#pragma once

#include <pybind11/pybind11.h>

namespace headrace {

void register_tensorflow(pybind11::module_& module);

}  // namespace headrace
