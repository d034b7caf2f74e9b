// SPDX-License-Identifier: Apache-2.0
//
// StatusError: a Status on its way to Python, where it is the exception headrace._core.StatusError.
//
// Thread safety: thrown and translated with the GIL held.

#pragma once

#include <pybind11/pybind11.h>

#include <exception>
#include <utility>

#include "core/status.h"

namespace headrace {

// Leaves the bindings as StatusError with attributes `code` and `message`.
class StatusException final : public std::exception {
 public:
  explicit StatusException(Status status) : status_(std::move(status)) {}
  const Status& status() const { return status_; }
  const char* what() const noexcept override { return status_.message().c_str(); }

 private:
  Status status_;
};

// REQUIRES: the status is not OK.
[[noreturn]] void throw_status(const Status& status);

inline void throw_unless_ok(const Status& status) {
  if (!status.ok()) throw_status(status);
}

// Adds the exception class to the module, and the translation to it.
void register_status_error(pybind11::module_& module);

}  // namespace headrace
