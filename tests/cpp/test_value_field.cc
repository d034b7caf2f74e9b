// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <type_traits>

#include "messages.h"
#include "wire/value_field.h"

namespace headrace {
namespace {

TEST(ValueField, IsTheOneThatTensorProtoHasForTheType) {
  for (const Type& type : kTypes) {
    SCOPED_TRACE(dtype_name(type.dtype));
    EXPECT_EQ(value_number(type.dtype), type.field);
    const WireType fixed = type.scalar == 4 ? WireType::kFixed32 : WireType::kFixed64;
    EXPECT_EQ(value_type(type.field), type.coding == Coding::kFixed ? fixed : WireType::kVarint);
  }
  EXPECT_EQ(value_number(DType::kString), 8u);
  EXPECT_EQ(value_type(8), WireType::kBytes);
}

TEST(ValueField, HoldsNothingWhereTensorProtoHasOtherFields) {
  EXPECT_EQ(value_number(DType::kInvalid), 0u);
  for (unsigned number : {0u, 1u, 2u, 3u, 4u, 14u, 15u, 18u, 1000u}) EXPECT_EQ(value_type(number), WireType::kBytes);
}

TEST(ValueField, VisitsAnElementAsWideAndAsSignedAsTheType) {
  for (const Type& type : kTypes) {
    if (type.coding == Coding::kFixed) continue;
    with_element_type(type.dtype, [&](auto element) {
      EXPECT_EQ(sizeof element, type.width);
      EXPECT_EQ(std::is_signed_v<decltype(element)>, type.coding == Coding::kSigned);
      EXPECT_EQ((std::is_same_v<decltype(element), bool>), type.dtype == DType::kBool);
    });
  }
}

}  // namespace
}  // namespace headrace
