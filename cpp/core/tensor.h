// SPDX-License-Identifier: Apache-2.0
//
// TensorView: a typed, shaped window onto memory that somebody else owns.
//
// Thread safety: a value; the memory behind it is read only.
// Ownership: none.  Whoever hands out a view says how long its memory lives.
// Invariants: numbers are row-major and little-endian at any alignment, `bytes` of them;
//   strings are `elements()` string_views at `strings`, and `data` is nullptr; an input that a request left out is of
//   type kInvalid and has nothing else.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {

// The numbers are tensorflow.DataType's (tensorflow/core/framework/types.proto).
enum class DType : int {
  kInvalid = 0,
  kFloat = 1,
  kDouble = 2,
  kInt32 = 3,
  kUint8 = 4,
  kInt16 = 5,
  kInt8 = 6,
  kString = 7,
  kComplex64 = 8,
  kInt64 = 9,
  kBool = 10,
  kBfloat16 = 14,
  kUint16 = 17,
  kComplex128 = 18,
  kHalf = 19,
  kUint32 = 22,
  kUint64 = 23,
};

// Bytes of one element; 0 for strings and for every type that cannot be served.
std::size_t dtype_bytes(DType dtype);

// Whether tensors of this type can be served: all of TensorProto's but RESOURCE, VARIANT and the quantized ones.
bool dtype_is_served(DType dtype);

// TensorFlow's short name, as its error texts have it: "float", "half", "int64", "string".
std::string_view dtype_name(DType dtype);

using Shape = std::vector<std::int64_t>;

// The product of the dimensions, 1 for a scalar; -1 where it overflows or a dimension is negative.
std::int64_t shape_elements(const Shape& shape);

// "[2,3]"; unknown dimensions (-1) as "?".
std::string shape_text(const Shape& shape);

struct TensorView {
  DType dtype = DType::kInvalid;
  Shape shape;
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
  const std::string_view* strings = nullptr;

  std::int64_t elements() const { return shape_elements(shape); }
  bool is_absent() const { return dtype == DType::kInvalid; }

  // Becomes a view of the rows [first, first + count) along dimension 0.  REQUIRES: rank >= 1, the rows exist.
  void narrow(std::int64_t first, std::int64_t count);
};

}  // namespace headrace
