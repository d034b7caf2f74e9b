// SPDX-License-Identifier: Apache-2.0
//
// Value fields: which field of tensorflow.TensorProto holds the values of a dtype, and how they are encoded there
// (tensorflow/core/framework/tensor.proto).
//
// Thread safety: pure functions.

#pragma once

#include <cassert>
#include <cstdint>

#include "core/tensor.h"
#include "wire/proto.h"

namespace headrace {

inline constexpr std::uint32_t kFloatVal = 5;
inline constexpr std::uint32_t kDoubleVal = 6;
inline constexpr std::uint32_t kIntVal = 7;
inline constexpr std::uint32_t kStringVal = 8;
inline constexpr std::uint32_t kScomplexVal = 9;
inline constexpr std::uint32_t kInt64Val = 10;
inline constexpr std::uint32_t kBoolVal = 11;
inline constexpr std::uint32_t kDcomplexVal = 12;
inline constexpr std::uint32_t kHalfVal = 13;
inline constexpr std::uint32_t kUint32Val = 16;
inline constexpr std::uint32_t kUint64Val = 17;

// The field that holds the values of a type.
constexpr std::uint32_t value_number(DType dtype) {
  switch (dtype) {
    case DType::kFloat:
      return kFloatVal;
    case DType::kDouble:
      return kDoubleVal;
    case DType::kInt32:
    case DType::kInt16:
    case DType::kInt8:
    case DType::kUint16:
    case DType::kUint8:
      return kIntVal;
    case DType::kString:
      return kStringVal;
    case DType::kComplex64:
      return kScomplexVal;
    case DType::kInt64:
      return kInt64Val;
    case DType::kBool:
      return kBoolVal;
    case DType::kComplex128:
      return kDcomplexVal;
    case DType::kHalf:
    case DType::kBfloat16:
      return kHalfVal;
    case DType::kUint32:
      return kUint32Val;
    case DType::kUint64:
      return kUint64Val;
    case DType::kInvalid:
      break;
  }
  return 0;
}

// The wire type of one unpacked value of a field; kBytes for strings and for fields that hold no values.
constexpr WireType value_type(std::uint32_t number) {
  switch (number) {
    case kFloatVal:
    case kScomplexVal:
      return WireType::kFixed32;
    case kDoubleVal:
    case kDcomplexVal:
      return WireType::kFixed64;
    case kIntVal:
    case kInt64Val:
    case kBoolVal:
    case kHalfVal:
    case kUint32Val:
    case kUint64Val:
      return WireType::kVarint;
    default:
      return WireType::kBytes;
  }
}

// Calls visit with a value of the C++ type that a varint-encoded dtype has in memory.
template <typename Visit>
auto with_element_type(DType dtype, Visit visit) {
  switch (dtype) {
    case DType::kInt32:
      return visit(std::int32_t{});
    case DType::kInt16:
      return visit(std::int16_t{});
    case DType::kInt8:
      return visit(std::int8_t{});
    case DType::kUint8:
      return visit(std::uint8_t{});
    case DType::kUint16:
    case DType::kHalf:
    case DType::kBfloat16:
      return visit(std::uint16_t{});
    case DType::kBool:
      return visit(bool{});
    case DType::kUint32:
      return visit(std::uint32_t{});
    case DType::kInt64:
      return visit(std::int64_t{});
    default:
      assert(dtype == DType::kUint64);
      return visit(std::uint64_t{});
  }
}

}  // namespace headrace
