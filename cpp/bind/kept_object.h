// SPDX-License-Identifier: Apache-2.0
//
// kept_object(): keeps a Python object for native code that has no GIL.
//
// Thread safety: what kept_object() returns is copied and dropped anywhere, without the GIL.
// Ownership: an object whose last pointer was dropped is let go of by the next release_dropped_objects(), which every
//   call from Python that could have caused it makes first.

#pragma once

#include <pybind11/pybind11.h>

#include <memory>

namespace headrace {

// REQUIRES: the GIL.
std::shared_ptr<const void> kept_object(pybind11::object object);

// The object that a pointer from kept_object() keeps.  REQUIRES: the GIL.
pybind11::object object_kept_by(const std::shared_ptr<const void>& kept);

// REQUIRES: the GIL.
void release_dropped_objects();

}  // namespace headrace
