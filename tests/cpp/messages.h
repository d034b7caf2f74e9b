// SPDX-License-Identifier: Apache-2.0
//
// Messages made by hand, so that no code of the codec checks itself.
//
// Thread safety: pure functions, but for the random numbers that belong to the caller.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <random>
#include <string>
#include <string_view>

#include "core/tensor.h"

namespace headrace {

inline std::string varint(std::uint64_t value) {
  std::string text;
  for (; value >= 0x80; value >>= 7) text += static_cast<char>(value | 0x80);
  return text += static_cast<char>(value);
}

inline std::string varint_field(unsigned number, std::uint64_t value) { return varint(number << 3) + varint(value); }

inline std::string bytes_field(unsigned number, std::string_view bytes) {
  return varint(number << 3 | 2) + varint(bytes.size()) + std::string(bytes);
}

inline std::string shape_proto(const Shape& shape) {
  std::string dims;
  for (std::int64_t dim : shape) dims += bytes_field(2, varint_field(1, static_cast<std::uint64_t>(dim)));
  return dims;
}

// A TensorProto of which `values` are all fields but dtype and tensor_shape.
inline std::string tensor_proto(int dtype, const Shape& shape, std::string_view values) {
  return varint_field(1, static_cast<std::uint64_t>(dtype)) + bytes_field(2, shape_proto(shape)) + std::string(values);
}

inline std::string tensor_proto(DType dtype, const Shape& shape, std::string_view values) {
  return tensor_proto(static_cast<int>(dtype), shape, values);
}

inline std::string input(std::string_view name, std::string_view tensor) {
  return bytes_field(2, bytes_field(1, name) + bytes_field(2, tensor));
}

template <typename T>
inline std::string raw(std::initializer_list<T> values) {
  std::string bytes;
  for (T value : values) bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  return bytes;
}

inline std::string floats(std::initializer_list<float> values) { return bytes_field(5, raw(values)); }

enum class Coding { kFixed, kSigned, kUnsigned };

struct Type {
  DType dtype;
  unsigned field;
  std::size_t width;   // bytes of an element
  std::size_t scalar;  // bytes of a value of the field: half of the element for complex types
  Coding coding;
};

inline const Type kTypes[] = {
    {DType::kFloat, 5, 4, 4, Coding::kFixed},        {DType::kDouble, 6, 8, 8, Coding::kFixed},
    {DType::kInt32, 7, 4, 4, Coding::kSigned},       {DType::kInt16, 7, 2, 2, Coding::kSigned},
    {DType::kInt8, 7, 1, 1, Coding::kSigned},        {DType::kUint16, 7, 2, 2, Coding::kUnsigned},
    {DType::kUint8, 7, 1, 1, Coding::kUnsigned},     {DType::kComplex64, 9, 8, 4, Coding::kFixed},
    {DType::kInt64, 10, 8, 8, Coding::kSigned},      {DType::kBool, 11, 1, 1, Coding::kUnsigned},
    {DType::kComplex128, 12, 16, 8, Coding::kFixed}, {DType::kHalf, 13, 2, 2, Coding::kUnsigned},
    {DType::kBfloat16, 13, 2, 2, Coding::kUnsigned}, {DType::kUint32, 16, 4, 4, Coding::kUnsigned},
    {DType::kUint64, 17, 8, 8, Coding::kUnsigned},
};

// One value as it lies in a packed run.
inline std::string packed_value(const Type& type, std::string_view bytes) {
  if (type.coding == Coding::kFixed) return std::string(bytes);
  std::uint64_t value = 0;
  std::memcpy(&value, bytes.data(), bytes.size());
  if (type.coding == Coding::kSigned && bytes.size() < 8 && (bytes.back() & 0x80) != 0)
    value |= ~std::uint64_t{0} << (8 * bytes.size());
  return varint(value);
}

inline std::string packed_field(const Type& type, std::string_view bytes) {
  std::string run;
  for (std::size_t i = 0; i < bytes.size(); i += type.scalar) run += packed_value(type, bytes.substr(i, type.scalar));
  return bytes_field(type.field, run);
}

inline std::string unpacked_fields(const Type& type, std::string_view bytes) {
  const unsigned wire_type = type.coding != Coding::kFixed ? 0 : type.scalar == 4 ? 5 : 1;
  std::string fields;
  for (std::size_t i = 0; i < bytes.size(); i += type.scalar)
    fields += varint(type.field << 3 | wire_type) + packed_value(type, bytes.substr(i, type.scalar));
  return fields;
}

// Runs and single values in random alternation.
inline std::string mixed_fields(const Type& type, std::string_view bytes, std::mt19937& random) {
  std::string fields;
  while (!bytes.empty()) {
    const std::size_t part = std::min(bytes.size(), (1 + random() % 4) * type.scalar);
    fields += random() % 2 ? packed_field(type, bytes.substr(0, part)) : unpacked_fields(type, bytes.substr(0, part));
    bytes.remove_prefix(part);
    if (random() % 4 == 0) fields += packed_field(type, "");
  }
  return fields;
}

inline std::string random_elements(const Type& type, std::size_t count, std::mt19937& random) {
  std::string bytes(count * type.width, '\0');
  for (char& c : bytes) c = static_cast<char>(type.dtype == DType::kBool ? random() % 2 : random());
  return bytes;
}

}  // namespace headrace
