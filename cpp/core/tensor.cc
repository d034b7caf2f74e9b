// SPDX-License-Identifier: Apache-2.0

#include "core/tensor.h"

#include <cassert>

namespace headrace {

std::size_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::kUint8:
    case DType::kInt8:
    case DType::kBool:
      return 1;
    case DType::kInt16:
    case DType::kUint16:
    case DType::kHalf:
    case DType::kBfloat16:
      return 2;
    case DType::kFloat:
    case DType::kInt32:
    case DType::kUint32:
      return 4;
    case DType::kDouble:
    case DType::kInt64:
    case DType::kUint64:
    case DType::kComplex64:
      return 8;
    case DType::kComplex128:
      return 16;
    case DType::kString:
    case DType::kInvalid:
      return 0;
  }
  return 0;
}

bool dtype_is_served(DType dtype) { return dtype == DType::kString || dtype_bytes(dtype) != 0; }

std::string_view dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kFloat:
      return "float";
    case DType::kDouble:
      return "double";
    case DType::kInt32:
      return "int32";
    case DType::kUint8:
      return "uint8";
    case DType::kInt16:
      return "int16";
    case DType::kInt8:
      return "int8";
    case DType::kString:
      return "string";
    case DType::kComplex64:
      return "complex64";
    case DType::kInt64:
      return "int64";
    case DType::kBool:
      return "bool";
    case DType::kBfloat16:
      return "bfloat16";
    case DType::kUint16:
      return "uint16";
    case DType::kComplex128:
      return "complex128";
    case DType::kHalf:
      return "half";
    case DType::kUint32:
      return "uint32";
    case DType::kUint64:
      return "uint64";
    case DType::kInvalid:
      break;
  }
  return "invalid";
}

std::int64_t shape_elements(const Shape& shape) {
  std::int64_t elements = 1;
  for (std::int64_t dim : shape) {
    if (dim < 0 || __builtin_mul_overflow(elements, dim, &elements)) return -1;
  }
  return elements;
}

std::string shape_text(const Shape& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i != 0) text += ',';
    text += shape[i] < 0 ? "?" : std::to_string(shape[i]);
  }
  return text + "]";
}

void TensorView::narrow(std::int64_t first, std::int64_t count) {
  assert(!shape.empty() && first >= 0 && count >= 0 && first + count <= shape[0]);
  const std::int64_t all = shape[0];
  if (all != 0 && strings != nullptr) {
    strings += first * (elements() / all);
  } else if (all != 0) {
    const std::size_t row_bytes = bytes / static_cast<std::size_t>(all);
    data += static_cast<std::size_t>(first) * row_bytes;
    bytes = static_cast<std::size_t>(count) * row_bytes;
  }
  shape[0] = count;
}

}  // namespace headrace
