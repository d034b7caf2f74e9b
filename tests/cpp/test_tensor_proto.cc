// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <iterator>
#include <memory>
#include <memory_resource>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "messages.h"
#include "wire/tensor_proto.h"

namespace headrace {
namespace {

using namespace std::string_literals;
using Strings = std::vector<std::string>;

// A message and what it decodes to.
class Tensor {
 public:
  explicit Tensor(std::string_view message, std::size_t budget = 1 << 20)
      : message_bytes_(message.size()), message_(new char[message.size()]) {
    // A copy that is exactly as long as the message, so that the sanitizers see any step beyond it.
    message.copy(message_.get(), message.size());
    TensorProto proto(&memory_);
    status_ = proto.merge({message_.get(), message.size()}) ? proto.view(&budget, &view_) : Internal("malformed");
  }

  const Status& status() const { return status_; }
  const TensorView& view() const { return view_; }

  bool is_in_place() const {
    const auto* const data = reinterpret_cast<const char*>(view_.data);
    return std::less_equal<>()(message_.get(), data) && std::less<>()(data, message_.get() + message_bytes_);
  }

 private:
  std::size_t message_bytes_;
  std::unique_ptr<char[]> message_;
  std::pmr::monotonic_buffer_resource memory_;
  TensorView view_;
  Status status_;
};

std::string bytes_of(const TensorView& view) { return {reinterpret_cast<const char*>(view.data), view.bytes}; }

// The bytes of the elements, or the error.
std::string decoded(std::string_view message) {
  const Tensor tensor(message);
  return tensor.status().ok() ? bytes_of(tensor.view()) : "error: " + tensor.status().message();
}

Strings decoded_strings(std::string_view message) {
  const Tensor tensor(message);
  if (!tensor.status().ok()) return {"error: " + tensor.status().message()};
  const TensorView& view = tensor.view();
  EXPECT_EQ(view.dtype, DType::kString);
  EXPECT_EQ(view.data, nullptr);
  EXPECT_NE(view.strings, nullptr);
  return {view.strings, view.strings + view.elements()};
}

// What is wrong with the tensor; the empty text where nothing is.
std::string error(std::string_view message, std::size_t budget = 1 << 20) {
  const Tensor tensor(message, budget);
  EXPECT_TRUE(tensor.status().ok() || tensor.status().code() == Code::kInvalidArgument);
  return tensor.status().message();
}

TEST(TensorProto, DecodesEveryNumericTypeFromEveryEncoding) {
  std::mt19937 random(1);
  for (const Type& type : kTypes) {
    SCOPED_TRACE(dtype_name(type.dtype));
    for (std::size_t rows : {1u, 2u, 5u, 40u}) {
      const Shape shape = {static_cast<std::int64_t>(rows), 3};
      const std::string bytes = random_elements(type, rows * 3, random);
      EXPECT_EQ(decoded(tensor_proto(type.dtype, shape, bytes_field(4, bytes))), bytes);
      EXPECT_EQ(decoded(tensor_proto(type.dtype, shape, packed_field(type, bytes))), bytes);
      EXPECT_EQ(decoded(tensor_proto(type.dtype, shape, unpacked_fields(type, bytes))), bytes);
      for (int i = 0; i < 10; ++i)
        EXPECT_EQ(decoded(tensor_proto(type.dtype, shape, mixed_fields(type, bytes, random))), bytes);
    }
  }
}

TEST(TensorProto, GoesOnWithTheLastValueOfAShortList) {
  std::mt19937 random(2);
  for (const Type& type : kTypes) {
    SCOPED_TRACE(dtype_name(type.dtype));
    for (std::size_t given = 1; given <= 7; ++given) {
      const std::string bytes = random_elements(type, given, random);
      std::string expected = bytes;
      while (expected.size() < 7 * type.width) expected += bytes.substr(bytes.size() - type.width);
      EXPECT_EQ(decoded(tensor_proto(type.dtype, {7}, packed_field(type, bytes))), expected);
      EXPECT_EQ(decoded(tensor_proto(type.dtype, {7}, mixed_fields(type, bytes, random))), expected);
    }
  }
}

TEST(TensorProto, TakesZerosWhereNoValueIsGiven) {
  for (const Type& type : kTypes) {
    EXPECT_EQ(decoded(tensor_proto(type.dtype, {2, 3}, "")), std::string(6 * type.width, '\0'));
    EXPECT_EQ(decoded(tensor_proto(type.dtype, {6}, packed_field(type, ""))), std::string(6 * type.width, '\0'));
  }
}

TEST(TensorProto, LeavesOutWhatIsMoreThanTheShapeHolds) {
  std::mt19937 random(3);
  for (const Type& type : kTypes) {
    const std::string bytes = random_elements(type, 9, random);
    const std::string kept = bytes.substr(0, 4 * type.width);
    EXPECT_EQ(decoded(tensor_proto(type.dtype, {4}, packed_field(type, bytes))), kept);
    EXPECT_EQ(decoded(tensor_proto(type.dtype, {4}, mixed_fields(type, bytes, random))), kept);
  }
}

TEST(TensorProto, CutsIntegersToTheirWidth) {
  const std::string big = bytes_field(7, varint(300) + varint(static_cast<std::uint64_t>(-129)) + varint(70'000));
  EXPECT_EQ(decoded(tensor_proto(DType::kInt8, {3}, big)), raw<std::int8_t>({44, 127, 112}));
  EXPECT_EQ(decoded(tensor_proto(DType::kUint16, {3}, big)), raw<std::uint16_t>({300, 65'407, 4464}));
  EXPECT_EQ(decoded(tensor_proto(DType::kInt32, {1}, bytes_field(7, varint(0xF'0000'0005)))), raw<std::int32_t>({5}));
  EXPECT_EQ(decoded(tensor_proto(DType::kHalf, {1}, bytes_field(13, varint(70'000)))), raw<std::uint16_t>({4464}));
  EXPECT_EQ(decoded(tensor_proto(DType::kBool, {2}, bytes_field(11, varint(256) + varint(0)))), "\1\0"s);
}

TEST(TensorProto, IgnoresHalfAComplexNumber) {
  EXPECT_EQ(decoded(tensor_proto(DType::kComplex64, {2}, bytes_field(9, raw<float>({1, 2, 3})))),
            raw<float>({1, 2, 1, 2}));
  EXPECT_EQ(decoded(tensor_proto(DType::kComplex64, {2}, bytes_field(9, raw<float>({1})))), raw<float>({0, 0, 0, 0}));
}

TEST(TensorProto, PrefersContentToValues) {
  const std::string content = bytes_field(4, raw<float>({7}));
  EXPECT_EQ(decoded(tensor_proto(DType::kFloat, {1}, floats({1}) + content)), raw<float>({7}));
  EXPECT_EQ(decoded(tensor_proto(DType::kFloat, {1}, content + bytes_field(4, "") + floats({1}))), raw<float>({1}));
}

TEST(TensorProto, IgnoresTheValuesOfOtherTypes) {
  const std::string others = bytes_field(6, raw<double>({1})) + bytes_field(7, varint(5)) + bytes_field(8, "text") +
                             bytes_field(14, "") + bytes_field(15, "") + varint(5 << 3) + varint(3);
  EXPECT_EQ(decoded(tensor_proto(DType::kFloat, {2}, others)), raw<float>({0, 0}));
  EXPECT_EQ(decoded(tensor_proto(DType::kFloat, {2}, others + floats({3, 4}))), raw<float>({3, 4}));
  EXPECT_EQ(decoded(floats({3, 4}) + others + tensor_proto(DType::kFloat, {2}, "")), raw<float>({3, 4}));
}

TEST(TensorProto, UsesBytesInPlaceWhereTheyAreTheTensors) {
  std::mt19937 random(4);
  for (const Type& type : kTypes) {
    SCOPED_TRACE(dtype_name(type.dtype));
    const std::string bytes = random_elements(type, 3, random);
    std::vector<std::pair<std::string, bool>> cases = {
        {bytes_field(4, bytes), true},
        {packed_field(type, bytes), type.coding == Coding::kFixed},
        {packed_field(type, bytes.substr(type.width)), false},
        {packed_field(type, bytes) + packed_field(type, ""), false},
    };
    for (const auto& [values, in_place] : cases) {
      const Tensor tensor(tensor_proto(type.dtype, {3}, values));
      ASSERT_TRUE(tensor.status().ok());
      EXPECT_EQ(tensor.is_in_place(), in_place);
    }
  }
}

TEST(TensorProto, DecodesStrings) {
  const std::string abc = bytes_field(8, "a") + bytes_field(8, "") + bytes_field(8, "c\0\xff"s);
  EXPECT_EQ(decoded_strings(tensor_proto(DType::kString, {3}, abc)), (Strings{"a", "", "c\0\xff"s}));
  EXPECT_EQ(decoded_strings(tensor_proto(DType::kString, {2}, abc)), (Strings{"a", ""}));
  EXPECT_EQ(decoded_strings(tensor_proto(DType::kString, {2, 2}, abc)), (Strings{"a", "", "c\0\xff"s, "c\0\xff"s}));
  EXPECT_EQ(decoded_strings(tensor_proto(DType::kString, {2}, "")), (Strings{"", ""}));
  EXPECT_EQ(decoded_strings(tensor_proto(DType::kString, {}, bytes_field(8, "one"))), (Strings{"one"}));
}

TEST(TensorProto, DecodesStringsFromContent) {
  const auto content = [](std::string_view bytes) { return tensor_proto(DType::kString, {3}, bytes_field(4, bytes)); };
  const std::string parsing_error = "error: tensor_content of ";
  EXPECT_EQ(decoded_strings(content("\1\0\3abcd"s)), (Strings{"a", "", "bcd"}));
  EXPECT_EQ(decoded_strings(content("\x81\x80\x80\x80\x10\0\3abcd"s)), (Strings{"a", "", "bcd"}));
  EXPECT_EQ(decoded_strings(content("\1\0\3abc"s))[0], parsing_error + "6 bytes is not a string[3]");
  EXPECT_EQ(decoded_strings(content("\1\0\3abcde"s))[0], parsing_error + "8 bytes is not a string[3]");
  EXPECT_EQ(decoded_strings(content("\1\0"s))[0], parsing_error + "2 bytes is not a string[3]");
  EXPECT_EQ(decoded_strings(content("\x81\x80\x80\x80\x80\0\0\3abcd"s))[0],
            parsing_error + "12 bytes is not a string[3]");
  EXPECT_EQ(decoded_strings(content("\xff\xff\xff\xff\x0f\xff\xff\xff\xff\x0f\3abc"))[0],
            parsing_error + "14 bytes is not a string[3]");
}

TEST(TensorProto, WithoutElementsMayHoldAnything) {
  for (const Type& type : kTypes) {
    const Tensor tensor(tensor_proto(type.dtype, {0, 3}, bytes_field(4, "abc")));
    ASSERT_TRUE(tensor.status().ok());
    EXPECT_EQ(tensor.view().shape, (Shape{0, 3}));
    EXPECT_EQ(tensor.view().bytes, 0u);
  }
  EXPECT_EQ(decoded_strings(tensor_proto(DType::kString, {2, 0}, bytes_field(4, "abc"))), Strings{});
}

TEST(TensorProto, ReadsShapesAsATensorShapeDoes) {
  const auto shape = [](std::string_view shape_field) -> Shape {
    const Tensor tensor(varint_field(1, 1) + std::string(shape_field));
    return tensor.status().ok() ? tensor.view().shape : Shape{-1};
  };
  EXPECT_EQ(shape(""), Shape{}) << "no shape is a scalar";
  EXPECT_EQ(shape(bytes_field(2, "")), Shape{});
  EXPECT_EQ(shape(bytes_field(2, bytes_field(2, ""))), Shape{0}) << "a dimension without size is 0";
  EXPECT_EQ(shape(bytes_field(2, varint_field(3, 1))), Shape{}) << "unknown_rank is ignored";
  EXPECT_EQ(shape(bytes_field(2, shape_proto({2})) + bytes_field(2, shape_proto({3}))), (Shape{2, 3})) << "merged";
  EXPECT_EQ(shape(bytes_field(2, bytes_field(2, varint_field(1, 4) + bytes_field(2, "name")))), Shape{4});
  EXPECT_EQ(shape(bytes_field(2, shape_proto(Shape(254, 1)))), Shape(254, 1));
}

TEST(TensorProto, RefusesShapesThatNoTensorHas) {
  const auto with_shape = [](const Shape& shape) { return error(tensor_proto(DType::kFloat, shape, "")); };
  EXPECT_EQ(with_shape({2, -1}), "shape [2,?] is negative or too large");
  EXPECT_EQ(with_shape({1LL << 40, 1LL << 40, 0}), "shape [1099511627776,1099511627776,0] is negative or too large");
  EXPECT_EQ(with_shape(Shape(255, 1)), "more than 254 dimensions");
  EXPECT_EQ(with_shape({0, 1LL << 40, 1LL << 40}), "");
}

TEST(TensorProto, RefusesContentOfAnotherLength) {
  const auto with_content = [](std::string_view content) {
    return error(tensor_proto(DType::kFloat, {2, 2}, bytes_field(4, content)));
  };
  EXPECT_EQ(with_content(std::string(16, 'x')), "");
  EXPECT_EQ(with_content(std::string(12, 'x')), "tensor_content of 12 bytes is not a float[2,2]");
  EXPECT_EQ(with_content(std::string(18, 'x')), "tensor_content of 18 bytes is not a float[2,2]");
  EXPECT_EQ(with_content(std::string(20, 'x')), "tensor_content of 20 bytes is not a float[2,2]");
  EXPECT_EQ(error(tensor_proto(DType::kBool, {2}, bytes_field(4, "\1\2"))),
            "tensor_content of a bool holds bytes other than 0 and 1");
}

TEST(TensorProto, ServesExactlyTheTypesThatItShould) {
  for (int dtype = -2; dtype < 140; ++dtype) {
    const bool served = dtype == static_cast<int>(DType::kString) ||
                        std::any_of(std::begin(kTypes), std::end(kTypes),
                                    [&](const Type& type) { return static_cast<int>(type.dtype) == dtype; });
    EXPECT_EQ(error(tensor_proto(dtype, {1}, "")), served ? "" : "dtype " + std::to_string(dtype) + " is not served");
  }
}

TEST(TensorProto, RefusesToUnfoldAFewBytesIntoTooMany) {
  const std::string limit =
      " takes more than the 1000 bytes left of what the values of one request may unfold to; send fewer";
  const auto unfold = [](DType dtype, const Shape& shape, std::string_view values) {
    return error(tensor_proto(dtype, shape, values), 1000);
  };
  EXPECT_EQ(unfold(DType::kFloat, {250}, floats({1})), "");
  EXPECT_EQ(unfold(DType::kFloat, {251}, floats({1})), "float[251]" + limit);
  EXPECT_EQ(unfold(DType::kFloat, {1'000'000'000'000}, floats({1})), "float[1000000000000]" + limit);
  EXPECT_EQ(unfold(DType::kDouble, {1LL << 62}, ""), "double[4611686018427387904]" + limit);
  EXPECT_EQ(unfold(DType::kString, {62}, ""), "");
  EXPECT_EQ(unfold(DType::kString, {63}, ""), "string[63]" + limit);
  EXPECT_EQ(unfold(DType::kString, {1LL << 62}, ""), "string[4611686018427387904]" + limit);
  EXPECT_EQ(unfold(DType::kString, {10}, bytes_field(8, std::string(93, 'x'))), "");
  EXPECT_NE(unfold(DType::kString, {10}, bytes_field(8, std::string(94, 'x'))), "") << "each copy counts";
  EXPECT_EQ(unfold(DType::kString, {1LL << 40}, bytes_field(4, "\1a")),
            "tensor_content of 2 bytes is not a string[1099511627776]");
  EXPECT_EQ(unfold(DType::kFloat, {1000}, bytes_field(5, std::string(4000, '\0'))), "") << "used in place";
}

TEST(TensorProto, ChargesTheBudgetForWhatItUnfolds) {
  const auto charged = [](std::string_view message) {
    std::pmr::monotonic_buffer_resource memory;
    TensorProto proto(&memory);
    EXPECT_TRUE(proto.merge(message));
    std::size_t budget = 1000;
    TensorView view;
    EXPECT_TRUE(proto.view(&budget, &view).ok());
    return 1000 - budget;
  };
  EXPECT_EQ(charged(tensor_proto(DType::kFloat, {3}, floats({1, 2, 3}))), 0u) << "used in place";
  EXPECT_EQ(charged(tensor_proto(DType::kFloat, {3}, floats({1, 2}))), 12u);
  EXPECT_EQ(charged(tensor_proto(DType::kHalf, {3}, bytes_field(13, "abc"))), 6u);
  EXPECT_EQ(charged(tensor_proto(DType::kString, {1}, bytes_field(8, std::string(50, 'x')))), 16u);
  EXPECT_EQ(charged(tensor_proto(DType::kString, {10}, bytes_field(8, std::string(50, 'x')))), 160u + 9 * 50);
  EXPECT_EQ(charged(tensor_proto(DType::kString, {2}, bytes_field(4, "\1\2abb"))), 32u);
}

TEST(TensorProto, RefusesAPackedRunThatEndsInAValue) {
  for (const Type& type : kTypes) {
    if (type.coding == Coding::kFixed) continue;
    EXPECT_EQ(error(tensor_proto(type.dtype, {2}, bytes_field(type.field, "\x01\x80"))), "malformed packed values");
  }
}

TEST(TensorProto, IsMalformedWhereItsPartsAre) {
  const auto is_malformed = [](std::string_view message) { return Tensor(message).status().code() == Code::kInternal; };
  EXPECT_TRUE(is_malformed(bytes_field(2,
                                       "\x12\x05"
                                       "abc")));
  EXPECT_TRUE(is_malformed(bytes_field(2, bytes_field(2, "\x08")))) << "a dimension that ends early";
  EXPECT_TRUE(is_malformed(bytes_field(2, bytes_field(2, bytes_field(2, "\xff"))))) << "a name that is not UTF-8";
  EXPECT_TRUE(is_malformed(bytes_field(5, "abc"))) << "no whole number of floats";
  EXPECT_TRUE(is_malformed(bytes_field(12, "abcd"))) << "no whole number of doubles";
  EXPECT_FALSE(is_malformed(bytes_field(7, "abc")));
}

TEST(TensorProto, MergesOneMessageAfterAnother) {
  std::pmr::monotonic_buffer_resource memory;
  TensorProto proto(&memory);
  const std::string parts[] = {varint_field(1, 7) + floats({1}), tensor_proto(DType::kFloat, {2}, floats({2, 3})),
                               bytes_field(2, shape_proto({2})) + floats({4})};
  for (const std::string& part : parts) ASSERT_TRUE(proto.merge(part));
  std::size_t budget = 100;
  TensorView view;
  ASSERT_TRUE(proto.view(&budget, &view).ok());
  EXPECT_EQ(view.shape, (Shape{2, 2}));
  EXPECT_EQ(bytes_of(view), raw<float>({1, 2, 3, 4}));
  EXPECT_EQ(budget, 84u);
}

std::string encoded(const TensorView& tensor) {
  const TensorProtoSize size = tensor_proto_size(tensor);
  std::string text;
  FieldWriter writer(&text);
  write_tensor_proto(tensor, size, &writer);
  writer.flush();
  EXPECT_EQ(text.size(), size.total);
  return text;
}

TensorView view_of(DType dtype, Shape shape, std::string_view bytes) {
  return {dtype, std::move(shape), reinterpret_cast<const std::byte*>(bytes.data()), bytes.size(), nullptr};
}

TEST(TensorProto, IsWrittenWithTypedValues) {
  std::mt19937 random(5);
  for (const Type& type : kTypes) {
    SCOPED_TRACE(dtype_name(type.dtype));
    for (std::size_t rows : {1u, 3u, 700u}) {
      const std::string bytes = random_elements(type, rows * 2, random);
      const Shape shape = {static_cast<std::int64_t>(rows), 2};
      EXPECT_EQ(encoded(view_of(type.dtype, shape, bytes)), tensor_proto(type.dtype, shape, packed_field(type, bytes)));
    }
  }
}

TEST(TensorProto, IsWrittenFromBytesAtAnyAlignment) {
  std::mt19937 random(6);
  for (const Type& type : kTypes) {
    const std::string bytes = "." + random_elements(type, 5, random);
    EXPECT_EQ(encoded(view_of(type.dtype, {5}, std::string_view(bytes).substr(1))),
              tensor_proto(type.dtype, {5}, packed_field(type, bytes.substr(1))));
  }
}

TEST(TensorProto, IsWrittenWithStrings) {
  const std::string_view strings[] = {"a", "", "ccc"};
  EXPECT_EQ(encoded({DType::kString, {3}, nullptr, 0, strings}),
            tensor_proto(DType::kString, {3}, bytes_field(8, "a") + bytes_field(8, "") + bytes_field(8, "ccc")));
}

TEST(TensorProto, IsWrittenWithoutDefaults) {
  EXPECT_EQ(encoded(view_of(DType::kFloat, {}, raw<float>({1}))), "\x08\x01\x12\x00"s + floats({1})) << "a scalar";
  EXPECT_EQ(encoded(view_of(DType::kInt64, {2, 0}, "")), "\x08\x09\x12\x06\x12\x02\x08\x02\x12\x00"s);
  EXPECT_EQ(encoded({DType::kString, {0}, nullptr, 0, nullptr}), "\x08\x07\x12\x02\x12\x00"s);
}

TEST(TensorProto, IsWrittenWithAnyByteButZeroForTrue) {
  EXPECT_EQ(encoded(view_of(DType::kBool, {3}, "\0\2\xff"s)),
            tensor_proto(DType::kBool, {3}, bytes_field(11, "\0\1\1"s)));
}

}  // namespace
}  // namespace headrace
