// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>

#include "core/tensor.h"

namespace headrace {
namespace {

constexpr std::int64_t kLargest = std::numeric_limits<std::int64_t>::max();

TensorView rows_of(TensorView view, std::int64_t first, std::int64_t count) {
  view.narrow(first, count);
  return view;
}

TEST(DType, HasTensorFlowsNumbersNamesAndSizes) {
  const struct {
    int number;
    std::string_view name;
    std::size_t bytes;
  } kTypes[] = {{1, "float", 4}, {2, "double", 8},  {3, "int32", 4},        {4, "uint8", 1},
                {5, "int16", 2}, {6, "int8", 1},    {7, "string", 0},       {8, "complex64", 8},
                {9, "int64", 8}, {10, "bool", 1},   {14, "bfloat16", 2},    {17, "uint16", 2},
                {19, "half", 2}, {22, "uint32", 4}, {18, "complex128", 16}, {23, "uint64", 8}};
  for (const auto& type : kTypes) {
    const auto dtype = static_cast<DType>(type.number);
    EXPECT_EQ(dtype_name(dtype), type.name) << type.number;
    EXPECT_EQ(dtype_bytes(dtype), type.bytes) << type.name;
    EXPECT_TRUE(dtype_is_served(dtype)) << type.name;
  }
}

TEST(DType, RefusesWhatCannotBeServed) {
  // INVALID, the quantized types, RESOURCE, VARIANT, a reference type, and a number that is none.
  for (int number : {0, 11, 12, 13, 15, 16, 20, 21, 101, 1'000, -1}) {
    const auto dtype = static_cast<DType>(number);
    EXPECT_FALSE(dtype_is_served(dtype)) << number;
    EXPECT_EQ(dtype_bytes(dtype), 0u) << number;
    EXPECT_EQ(dtype_name(dtype), "invalid") << number;
  }
}

TEST(Shape, MultipliesItsDimensionsAndAScalarHasOneElement) {
  EXPECT_EQ(shape_elements({}), 1);
  EXPECT_EQ(shape_elements({7}), 7);
  EXPECT_EQ(shape_elements({2, 3, 4}), 24);
  EXPECT_EQ(shape_elements({5, 0, 4}), 0);
  EXPECT_EQ(shape_elements({kLargest, 1}), kLargest);
}

TEST(Shape, HasNoCountWhereItOverflowsOrADimensionIsNegative) {
  EXPECT_EQ(shape_elements({kLargest, 2}), -1);
  EXPECT_EQ(shape_elements({std::int64_t{1} << 32, std::int64_t{1} << 32}), -1);
  EXPECT_EQ(shape_elements({-1, 3}), -1);
  EXPECT_EQ(shape_elements({0, -1}), -1);
}

TEST(Shape, ReadsAsTensorFlowWritesIt) {
  EXPECT_EQ(shape_text({}), "[]");
  EXPECT_EQ(shape_text({2, 3}), "[2,3]");
  EXPECT_EQ(shape_text({-1, 784}), "[?,784]");
}

TEST(TensorView, ShowsRowsOfNumbersInPlace) {
  const float numbers[4][3] = {};
  const TensorView view{.dtype = DType::kFloat,
                        .shape = {4, 3},
                        .data = reinterpret_cast<const std::byte*>(numbers),
                        .bytes = sizeof numbers};
  const TensorView part = rows_of(view, 1, 2);
  EXPECT_EQ(part.dtype, DType::kFloat);
  EXPECT_EQ(part.shape, (Shape{2, 3}));
  EXPECT_EQ(part.data, reinterpret_cast<const std::byte*>(numbers[1]));
  EXPECT_EQ(part.bytes, sizeof numbers[1] * 2);
  EXPECT_EQ(rows_of(view, 4, 0).bytes, 0u);
}

TEST(TensorView, ShowsRowsOfStringsInPlace) {
  const std::string_view strings[] = {"a", "b", "c", "d", "e", "f"};
  const TensorView view{.dtype = DType::kString, .shape = {3, 2}, .bytes = 6, .strings = strings};
  const TensorView part = rows_of(view, 2, 1);
  EXPECT_EQ(part.shape, (Shape{1, 2}));
  EXPECT_EQ(part.strings, strings + 4);
  EXPECT_EQ(part.data, nullptr);
}

TEST(TensorView, HasRowsWithoutElements) {
  const std::byte nothing{};
  const TensorView view{.dtype = DType::kFloat, .shape = {3, 0}, .data = &nothing};
  EXPECT_EQ(rows_of(view, 1, 2).shape, (Shape{2, 0}));
  EXPECT_EQ(rows_of(view, 1, 2).bytes, 0u);
  const TensorView empty{.dtype = DType::kFloat, .shape = {0, 5}, .data = &nothing};
  EXPECT_EQ(rows_of(empty, 0, 0).shape, (Shape{0, 5}));
}

}  // namespace
}  // namespace headrace
