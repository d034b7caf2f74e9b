// SPDX-License-Identifier: Apache-2.0
//
// NumPy arrays and TensorViews: the one place where tensors cross between Python and C++.
//
// Thread safety: every function here needs the GIL, and gives it up only while it copies large numbers.
// Ownership: said by each function; a TensorView never keeps its memory.
// Invariant: strings are object arrays of bytes on their way out; on their way in also lists and arrays of bytes or
//   str (as UTF-8).  bfloat16 is ml_dtypes.bfloat16.

#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/slab.h"
#include "core/tensor.h"

namespace headrace {

// Imports what the conversions need.  Once, with the module: an import under a conversion runs Python under C++ frames,
// and a thread that the end of the process stops there takes the process down.
void prepare_arrays();

// NumPy's dtype of a served type.  REQUIRES: dtype_is_served(dtype).
pybind11::dtype numpy_dtype(DType dtype);

// "float32", "bfloat16", "bytes": what messages to Python callers say.
std::string_view numpy_name(DType dtype);

// The type of NumPy's dtype, whatever its byte order; kInvalid where it cannot be served.
DType dtype_of(const pybind11::dtype& dtype);

// What may become of an array of another type than expected.
enum class Casting {
  kNone,      // nothing: it is refused
  kSameKind,  // numbers may lose precision, but nothing else: integers must fit, and floats stay floats
};

// A tensor with its own memory: numbers 64-byte aligned, strings in one piece.
class ArrayCopy {
 public:
  // Copies `value`: an array of exactly `expected`, or lists and numbers that convert to it without loss of kind
  // (integers to floats, not floats to integers).  With kInvalid, of whatever served type it is.  `what` opens the
  // messages: `input "x"`.  Throws INVALID_ARGUMENT.
  static ArrayCopy from(pybind11::handle value, DType expected, std::string_view what,
                        Casting casting = Casting::kNone);

  const TensorView& view() const { return view_; }

 private:
  struct Free {
    void operator()(std::byte* data) const { std::free(data); }
  };

  TensorView view_;
  std::unique_ptr<std::byte, Free> data_;
  std::unique_ptr<char[]> characters_;
  std::vector<std::string_view> strings_;
};

// A tensor in the memory of a Python object, which it keeps: for what a callable returned, and what a caller that waits
// lends.
class BorrowedArray {
 public:
  // Views `value` as ArrayCopy::from would copy it; copies only where it is not contiguous, native and of this type.
  // Destroy it with the GIL held.  Throws INVALID_ARGUMENT.
  static BorrowedArray from(pybind11::handle value, DType expected, std::string_view what,
                            Casting casting = Casting::kNone);

  const TensorView& view() const { return view_; }

 private:
  TensorView view_;
  pybind11::object keeper_;
  std::vector<std::string_view> strings_;
};

// A contiguous, writable array of the caller's own.
pybind11::array copy_to_array(const TensorView& view);

// An array over the view's memory, which lives as long as `owner`; the array keeps that.  Strings are copied.
pybind11::array view_of(const TensorView& view, std::shared_ptr<const void> owner);

}  // namespace headrace
