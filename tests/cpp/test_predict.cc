// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "wire/predict.h"

namespace {

std::size_t allocations = 0;

}  // namespace

// Counts what the codec allocates.
void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace headrace {
namespace {

using namespace std::string_literals;

// --- messages made by hand, so that no code of the codec checks itself ---------------------------------------------

std::string varint(std::uint64_t value) {
  std::string text;
  for (; value >= 0x80; value >>= 7) text += static_cast<char>(value | 0x80);
  return text += static_cast<char>(value);
}

std::string varint_field(unsigned number, std::uint64_t value) { return varint(number << 3) + varint(value); }

std::string bytes_field(unsigned number, std::string_view bytes) {
  return varint(number << 3 | 2) + varint(bytes.size()) + std::string(bytes);
}

std::string shape_proto(const Shape& shape) {
  std::string dims;
  for (std::int64_t dim : shape) dims += bytes_field(2, varint_field(1, static_cast<std::uint64_t>(dim)));
  return dims;
}

// A TensorProto of which `values` are all fields but dtype and tensor_shape.
std::string tensor_proto(int dtype, const Shape& shape, std::string_view values) {
  return varint_field(1, static_cast<std::uint64_t>(dtype)) + bytes_field(2, shape_proto(shape)) + std::string(values);
}

std::string tensor_proto(DType dtype, const Shape& shape, std::string_view values) {
  return tensor_proto(static_cast<int>(dtype), shape, values);
}

std::string input(std::string_view name, std::string_view tensor) {
  return bytes_field(2, bytes_field(1, name) + bytes_field(2, tensor));
}

template <typename T>
std::string raw(std::initializer_list<T> values) {
  std::string bytes;
  for (T value : values) bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  return bytes;
}

std::string floats(std::initializer_list<float> values) { return bytes_field(5, raw(values)); }

// --- the types
// --------------------------------------------------------------------------------------------------------

enum class Coding { kFixed, kSigned, kUnsigned };

struct Type {
  DType dtype;
  unsigned field;
  std::size_t width;   // bytes of an element
  std::size_t scalar;  // bytes of a value of the field: half of the element for complex types
  Coding coding;
};

const Type kTypes[] = {
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
std::string packed_value(const Type& type, std::string_view bytes) {
  if (type.coding == Coding::kFixed) return std::string(bytes);
  std::uint64_t value = 0;
  std::memcpy(&value, bytes.data(), bytes.size());
  if (type.coding == Coding::kSigned && bytes.size() < 8 && (bytes.back() & 0x80) != 0)
    value |= ~std::uint64_t{0} << (8 * bytes.size());
  return varint(value);
}

std::string packed_field(const Type& type, std::string_view bytes) {
  std::string run;
  for (std::size_t i = 0; i < bytes.size(); i += type.scalar) run += packed_value(type, bytes.substr(i, type.scalar));
  return bytes_field(type.field, run);
}

std::string unpacked_fields(const Type& type, std::string_view bytes) {
  const unsigned wire_type = type.coding != Coding::kFixed ? 0 : type.scalar == 4 ? 5 : 1;
  std::string fields;
  for (std::size_t i = 0; i < bytes.size(); i += type.scalar)
    fields += varint(type.field << 3 | wire_type) + packed_value(type, bytes.substr(i, type.scalar));
  return fields;
}

// Runs and single values in random alternation.
std::string mixed_fields(const Type& type, std::string_view bytes, std::mt19937& random) {
  std::string fields;
  while (!bytes.empty()) {
    const std::size_t part = std::min(bytes.size(), (1 + random() % 4) * type.scalar);
    fields += random() % 2 ? packed_field(type, bytes.substr(0, part)) : unpacked_fields(type, bytes.substr(0, part));
    bytes.remove_prefix(part);
    if (random() % 4 == 0) fields += packed_field(type, "");
  }
  return fields;
}

std::string random_elements(const Type& type, std::size_t count, std::mt19937& random) {
  std::string bytes(count * type.width, '\0');
  for (char& c : bytes) c = static_cast<char>(type.dtype == DType::kBool ? random() % 2 : random());
  return bytes;
}

// --- decoding
// ---------------------------------------------------------------------------------------------------------

TensorSpec spec(std::string name, DType dtype) { return {std::move(name), dtype, std::nullopt, {}}; }

Signature x_of(DType dtype) { return {"serving_default", {spec("x", dtype)}, {spec("x", dtype)}}; }

// Decodes a copy that is exactly as long as the message, so that the sanitizers see any step beyond it.
Status decode(std::string_view message, PredictRequestPtr* request) {
  std::shared_ptr<std::byte[]> copy(new std::byte[message.size()]);
  message.copy(reinterpret_cast<char*>(copy.get()), message.size());
  return PredictRequest::decode({copy.get(), message.size()}, copy, request);
}

Status decode_and_bind(std::string_view message, const Signature& signature, PredictRequestPtr* request,
                       std::size_t unfolded_bytes_max = kMessageBytesMax) {
  Status status = decode(message, request);
  return status.ok() ? (*request)->bind(signature, "model", 7, unfolded_bytes_max) : status;
}

// What is wrong with the message; the empty text where nothing is.
std::string error(std::string_view message, const Signature& signature = x_of(DType::kFloat),
                  std::size_t unfolded_bytes_max = kMessageBytesMax) {
  PredictRequestPtr request;
  const Status status = decode_and_bind(message, signature, &request, unfolded_bytes_max);
  EXPECT_TRUE(status.ok() || status.code() == Code::kInvalidArgument) << static_cast<int>(status.code());
  return status.message();
}

std::string bytes_of(const TensorView& view) { return {reinterpret_cast<const char*>(view.data), view.bytes}; }

// The bytes of the input x of that type, or the error.
std::string decoded(DType dtype, std::string_view tensor) {
  static PredictRequestPtr request;  // the last one lives on while its answer is looked at
  const Signature signature = x_of(dtype);
  const Status status = decode_and_bind(input("x", tensor), signature, &request);
  return status.ok() ? bytes_of(request->inputs[0]) : "error: " + status.message();
}

std::vector<std::string> decoded_strings(std::string_view tensor) {
  PredictRequestPtr request;
  const Signature signature = x_of(DType::kString);
  const Status status = decode_and_bind(input("x", tensor), signature, &request);
  if (!status.ok()) return {"error: " + status.message()};
  const TensorView& view = request->inputs[0];
  EXPECT_EQ(view.data, nullptr);
  EXPECT_NE(view.strings, nullptr);
  return {view.strings, view.strings + view.elements()};
}

using Strings = std::vector<std::string>;

TEST(TensorProto, DecodesEveryNumericTypeFromEveryEncoding) {
  std::mt19937 random(1);
  for (const Type& type : kTypes) {
    SCOPED_TRACE(dtype_name(type.dtype));
    for (std::size_t rows : {1u, 2u, 5u, 40u}) {
      const Shape shape = {static_cast<std::int64_t>(rows), 3};
      const std::string bytes = random_elements(type, rows * 3, random);
      EXPECT_EQ(decoded(type.dtype, tensor_proto(type.dtype, shape, bytes_field(4, bytes))), bytes);
      EXPECT_EQ(decoded(type.dtype, tensor_proto(type.dtype, shape, packed_field(type, bytes))), bytes);
      EXPECT_EQ(decoded(type.dtype, tensor_proto(type.dtype, shape, unpacked_fields(type, bytes))), bytes);
      for (int i = 0; i < 10; ++i)
        EXPECT_EQ(decoded(type.dtype, tensor_proto(type.dtype, shape, mixed_fields(type, bytes, random))), bytes);
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
      EXPECT_EQ(decoded(type.dtype, tensor_proto(type.dtype, {7}, packed_field(type, bytes))), expected);
      EXPECT_EQ(decoded(type.dtype, tensor_proto(type.dtype, {7}, mixed_fields(type, bytes, random))), expected);
    }
  }
}

TEST(TensorProto, TakesZerosWhereNoValueIsGiven) {
  for (const Type& type : kTypes) {
    EXPECT_EQ(decoded(type.dtype, tensor_proto(type.dtype, {2, 3}, "")), std::string(6 * type.width, '\0'));
    EXPECT_EQ(decoded(type.dtype, tensor_proto(type.dtype, {6}, packed_field(type, ""))),
              std::string(6 * type.width, '\0'));
  }
}

TEST(TensorProto, LeavesOutWhatIsMoreThanTheShapeHolds) {
  std::mt19937 random(3);
  for (const Type& type : kTypes) {
    const std::string bytes = random_elements(type, 9, random);
    const std::string kept = bytes.substr(0, 4 * type.width);
    EXPECT_EQ(decoded(type.dtype, tensor_proto(type.dtype, {4}, packed_field(type, bytes))), kept);
    EXPECT_EQ(decoded(type.dtype, tensor_proto(type.dtype, {4}, mixed_fields(type, bytes, random))), kept);
  }
}

TEST(TensorProto, CutsIntegersToTheirWidth) {
  const std::string big = bytes_field(7, varint(300) + varint(static_cast<std::uint64_t>(-129)) + varint(70'000));
  EXPECT_EQ(decoded(DType::kInt8, tensor_proto(DType::kInt8, {3}, big)), raw<std::int8_t>({44, 127, 112}));
  EXPECT_EQ(decoded(DType::kUint16, tensor_proto(DType::kUint16, {3}, big)), raw<std::uint16_t>({300, 65'407, 4464}));
  EXPECT_EQ(decoded(DType::kInt32, tensor_proto(DType::kInt32, {1}, bytes_field(7, varint(0xF'0000'0005)))),
            raw<std::int32_t>({5}));
  EXPECT_EQ(decoded(DType::kHalf, tensor_proto(DType::kHalf, {1}, bytes_field(13, varint(70'000)))),
            raw<std::uint16_t>({4464}));
  EXPECT_EQ(decoded(DType::kBool, tensor_proto(DType::kBool, {2}, bytes_field(11, varint(256) + varint(0)))), "\1\0"s);
}

TEST(TensorProto, IgnoresHalfAComplexNumber) {
  EXPECT_EQ(decoded(DType::kComplex64, tensor_proto(DType::kComplex64, {2}, bytes_field(9, raw<float>({1, 2, 3})))),
            raw<float>({1, 2, 1, 2}));
  EXPECT_EQ(decoded(DType::kComplex64, tensor_proto(DType::kComplex64, {2}, bytes_field(9, raw<float>({1})))),
            raw<float>({0, 0, 0, 0}));
}

TEST(TensorProto, PrefersContentToValues) {
  const std::string content = bytes_field(4, raw<float>({7}));
  EXPECT_EQ(decoded(DType::kFloat, tensor_proto(DType::kFloat, {1}, floats({1}) + content)), raw<float>({7}));
  EXPECT_EQ(decoded(DType::kFloat, tensor_proto(DType::kFloat, {1}, content + bytes_field(4, "") + floats({1}))),
            raw<float>({1}));
}

TEST(TensorProto, IgnoresTheValuesOfOtherTypes) {
  const std::string others = bytes_field(6, raw<double>({1})) + bytes_field(7, varint(5)) + bytes_field(8, "text") +
                             bytes_field(14, "") + bytes_field(15, "") + varint(5 << 3) + varint(3);
  EXPECT_EQ(decoded(DType::kFloat, tensor_proto(DType::kFloat, {2}, others)), raw<float>({0, 0}));
  EXPECT_EQ(decoded(DType::kFloat, tensor_proto(DType::kFloat, {2}, others + floats({3, 4}))), raw<float>({3, 4}));
  EXPECT_EQ(decoded(DType::kFloat, floats({3, 4}) + others + tensor_proto(DType::kFloat, {2}, "")), raw<float>({3, 4}));
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
      const std::string message = input("x", tensor_proto(type.dtype, {3}, values));
      PredictRequestPtr request;
      const auto owner = std::make_shared<int>();
      const auto bytes_of_message = std::as_bytes(std::span(message));
      ASSERT_TRUE(PredictRequest::decode(bytes_of_message, owner, &request).ok());
      EXPECT_EQ(owner.use_count(), 2);
      ASSERT_TRUE(request->bind(x_of(type.dtype), "m", 1).ok());
      const std::byte* const data = request->inputs[0].data;
      EXPECT_EQ(data >= bytes_of_message.data() && data < bytes_of_message.data() + message.size(), in_place);
      request.reset();
      EXPECT_EQ(owner.use_count(), 1);
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
  const std::string parsing_error = "error: tensor parsing error: x: tensor_content of ";
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
    PredictRequestPtr request;
    const Signature signature = x_of(type.dtype);
    const std::string tensor = tensor_proto(type.dtype, {0, 3}, bytes_field(4, "abc"));
    ASSERT_TRUE(decode_and_bind(input("x", tensor), signature, &request).ok());
    EXPECT_EQ(request->inputs[0].shape, (Shape{0, 3}));
    EXPECT_EQ(request->inputs[0].bytes, 0u);
  }
  EXPECT_EQ(decoded_strings(tensor_proto(DType::kString, {2, 0}, bytes_field(4, "abc"))), Strings{});
}

TEST(TensorProto, ReadsShapesAsATensorShapeDoes) {
  const auto shape = [](std::string_view shape_field) -> Shape {
    PredictRequestPtr request;
    const Signature signature = x_of(DType::kFloat);
    const Status status =
        decode_and_bind(input("x", varint_field(1, 1) + std::string(shape_field)), signature, &request);
    return status.ok() ? request->inputs[0].shape : Shape{-1};
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
  const auto with_shape = [](const Shape& shape) { return error(input("x", tensor_proto(DType::kFloat, shape, ""))); };
  EXPECT_EQ(with_shape({2, -1}), "tensor parsing error: x: shape [2,?] is negative or too large");
  EXPECT_EQ(with_shape({1LL << 40, 1LL << 40, 0}),
            "tensor parsing error: x: shape [1099511627776,1099511627776,0] is negative or too large");
  EXPECT_EQ(with_shape(Shape(255, 1)), "tensor parsing error: x: more than 254 dimensions");
  EXPECT_EQ(with_shape({0, 1LL << 40, 1LL << 40}), "");
}

TEST(TensorProto, RefusesContentOfAnotherLength) {
  const auto with_content = [](std::string_view content) {
    return error(input("x", tensor_proto(DType::kFloat, {2, 2}, bytes_field(4, content))));
  };
  EXPECT_EQ(with_content(std::string(16, 'x')), "");
  EXPECT_EQ(with_content(std::string(12, 'x')),
            "tensor parsing error: x: tensor_content of 12 bytes is not a float[2,2]");
  EXPECT_EQ(with_content(std::string(18, 'x')),
            "tensor parsing error: x: tensor_content of 18 bytes is not a float[2,2]");
  EXPECT_EQ(with_content(std::string(20, 'x')),
            "tensor parsing error: x: tensor_content of 20 bytes is not a float[2,2]");
  EXPECT_EQ(error(input("x", tensor_proto(DType::kBool, {2}, bytes_field(4, "\1\2"))), x_of(DType::kBool)),
            "tensor parsing error: x: tensor_content of a bool holds bytes other than 0 and 1");
}

TEST(TensorProto, ServesExactlyTheTypesThatItShould) {
  for (int dtype = -2; dtype < 140; ++dtype) {
    const bool served = dtype == static_cast<int>(DType::kString) ||
                        std::any_of(std::begin(kTypes), std::end(kTypes),
                                    [&](const Type& type) { return static_cast<int>(type.dtype) == dtype; });
    const std::string message = input("x", tensor_proto(dtype, {1}, ""));
    EXPECT_EQ(error(message, x_of(static_cast<DType>(dtype))),
              served ? "" : "tensor parsing error: x: dtype " + std::to_string(dtype) + " is not served");
  }
}

TEST(TensorProto, RefusesToUnfoldAFewBytesIntoTooMany) {
  const std::string limit =
      " takes more than the 1000 bytes left of what the values of one request may unfold to (unfolded_bytes_max)";
  const auto unfold = [](DType dtype, const Shape& shape, std::string_view values) {
    return error(input("x", tensor_proto(dtype, shape, values)), x_of(dtype), 1000);
  };
  const std::string parsing_error = "tensor parsing error: x: ";
  EXPECT_EQ(unfold(DType::kFloat, {250}, floats({1})), "");
  EXPECT_EQ(unfold(DType::kFloat, {251}, floats({1})), parsing_error + "float[251]" + limit);
  EXPECT_EQ(unfold(DType::kFloat, {1'000'000'000'000}, floats({1})), parsing_error + "float[1000000000000]" + limit);
  EXPECT_EQ(unfold(DType::kDouble, {1LL << 62}, ""), parsing_error + "double[4611686018427387904]" + limit);
  EXPECT_EQ(unfold(DType::kString, {62}, ""), "");
  EXPECT_EQ(unfold(DType::kString, {63}, ""), parsing_error + "string[63]" + limit);
  EXPECT_EQ(unfold(DType::kString, {1LL << 62}, ""), parsing_error + "string[4611686018427387904]" + limit);
  EXPECT_EQ(unfold(DType::kString, {10}, bytes_field(8, std::string(93, 'x'))), "");
  EXPECT_NE(unfold(DType::kString, {10}, bytes_field(8, std::string(94, 'x'))), "") << "each copy counts";
  EXPECT_EQ(unfold(DType::kString, {1LL << 40}, bytes_field(4, "\1a")),
            parsing_error + "tensor_content of 2 bytes is not a string[1099511627776]");
  EXPECT_EQ(unfold(DType::kFloat, {1000}, bytes_field(5, std::string(4000, '\0'))), "") << "used in place";
}

TEST(TensorProto, ChargesAllInputsOfARequestToOneBudget) {
  const Signature signature = {"s", {spec("a", DType::kFloat), spec("b", DType::kFloat)}, {}};
  const std::string tensor = tensor_proto(DType::kFloat, {150}, floats({1}));
  EXPECT_EQ(error(input("a", tensor) + input("b", tensor), signature, 1200), "");
  EXPECT_EQ(error(input("a", tensor) + input("b", tensor), signature, 1199),
            "tensor parsing error: b: float[150] takes more than the 599 bytes left of what the values of one request "
            "may unfold to (unfolded_bytes_max)");
}

// --- requests
// ---------------------------------------------------------------------------------------------------------

const std::string kOne = tensor_proto(DType::kFloat, {1}, floats({1}));

ModelSpec model_spec_of(std::string_view message) {
  static PredictRequestPtr request;  // the last one lives on while its answer is looked at
  const Status status = decode(message, &request);
  EXPECT_TRUE(status.ok()) << status.message();
  return request->model_spec();
}

TEST(PredictRequest, ReadsTheModelSpec) {
  const ModelSpec none = model_spec_of("");
  EXPECT_FALSE(none.present);
  const ModelSpec empty = model_spec_of(bytes_field(1, ""));
  EXPECT_TRUE(empty.present);
  EXPECT_EQ(empty.name, "");
  EXPECT_FALSE(empty.version.has_value() || empty.version_label.has_value());
  const ModelSpec full = model_spec_of(bytes_field(1, bytes_field(3, "sig") + bytes_field(2, varint_field(1, 123)) +
                                                          bytes_field(9, "?") + bytes_field(1, "digits")));
  EXPECT_EQ(full.name, "digits");
  EXPECT_EQ(full.version, 123);
  EXPECT_EQ(full.version_label, std::nullopt);
  EXPECT_EQ(full.signature_name, "sig");
}

TEST(PredictRequest, TakesTheLastOfVersionAndLabel) {
  const std::string version = bytes_field(2, varint_field(1, 5)), zero = bytes_field(2, ""),
                    label = bytes_field(4, "stable");
  EXPECT_EQ(model_spec_of(bytes_field(1, version + label)).version, std::nullopt);
  EXPECT_EQ(model_spec_of(bytes_field(1, version + label)).version_label, "stable");
  EXPECT_EQ(model_spec_of(bytes_field(1, label + version)).version, 5);
  EXPECT_EQ(model_spec_of(bytes_field(1, label + version)).version_label, std::nullopt);
  EXPECT_EQ(model_spec_of(bytes_field(1, zero)).version, 0);
  EXPECT_EQ(model_spec_of(bytes_field(1, version + zero)).version, 5) << "merged";
  EXPECT_EQ(model_spec_of(bytes_field(1, version + label + zero)).version, 0);
  EXPECT_EQ(model_spec_of(bytes_field(1, bytes_field(2, varint_field(1, static_cast<std::uint64_t>(-3))))).version, -3);
}

TEST(PredictRequest, MergesRepeatedModelSpecs) {
  const ModelSpec spec = model_spec_of(bytes_field(1, bytes_field(1, "a") + bytes_field(3, "sig")) +
                                       bytes_field(1, bytes_field(1, "b")) + bytes_field(1, ""));
  EXPECT_EQ(spec.name, "b");
  EXPECT_EQ(spec.signature_name, "sig");
}

TEST(PredictRequest, PutsInputsInTheOrderOfTheSignature) {
  const Signature signature = {"s", {spec("b", DType::kFloat), spec("a", DType::kInt32), spec("c", DType::kFloat)}, {}};
  const std::string a = input("a", tensor_proto(DType::kInt32, {2}, bytes_field(7, varint(4) + varint(5))));
  const std::string b = input("b", tensor_proto(DType::kFloat, {1}, floats({2})));
  const std::string c = input("c", tensor_proto(DType::kFloat, {1}, floats({3})));
  for (const std::string& message : {a + b + c, c + b + a, b + c + a}) {
    PredictRequestPtr request;
    ASSERT_TRUE(decode_and_bind(message, signature, &request).ok());
    ASSERT_EQ(request->inputs.size(), 3u);
    EXPECT_EQ(bytes_of(request->inputs[0]), raw<float>({2}));
    EXPECT_EQ(bytes_of(request->inputs[1]), raw<std::int32_t>({4, 5}));
    EXPECT_EQ(bytes_of(request->inputs[2]), raw<float>({3}));
  }
}

TEST(PredictRequest, TakesTheLastInputOfAName) {
  const std::string one = input("x", kOne), two = input("x", tensor_proto(DType::kFloat, {1}, floats({2})));
  PredictRequestPtr request;
  const Signature signature = x_of(DType::kFloat);
  ASSERT_TRUE(decode_and_bind(one + two, signature, &request).ok());
  EXPECT_EQ(bytes_of(request->inputs[0]), raw<float>({2}));
  ASSERT_TRUE(decode_and_bind(one + input("x", "") + two + two + one, signature, &request).ok());
  EXPECT_EQ(bytes_of(request->inputs[0]), raw<float>({1}));
}

TEST(PredictRequest, ReadsMapEntriesInAnyOrderAndWithDefaults) {
  PredictRequestPtr request;
  const Signature signature = x_of(DType::kFloat);
  ASSERT_TRUE(decode_and_bind(bytes_field(2, bytes_field(2, kOne) + bytes_field(1, "x")), signature, &request).ok());
  EXPECT_EQ(bytes_of(request->inputs[0]), raw<float>({1}));
  ASSERT_TRUE(decode_and_bind(bytes_field(2, bytes_field(1, "y") + bytes_field(2, kOne) + bytes_field(1, "x")),
                              signature, &request)
                  .ok());
  const Signature nameless = {"s", {spec("", DType::kFloat)}, {}};
  ASSERT_TRUE(decode_and_bind(bytes_field(2, bytes_field(2, kOne)), nameless, &request).ok());
  EXPECT_EQ(error(bytes_field(2, bytes_field(1, "x"))), "tensor parsing error: x: dtype 0 is not served");
}

TEST(PredictRequest, MergesATensorThatIsGivenInParts) {
  const std::string parts = bytes_field(2, bytes_field(2, varint_field(1, 7) + floats({1})) + bytes_field(1, "x") +
                                               bytes_field(2, tensor_proto(DType::kFloat, {2}, floats({2, 3}))) +
                                               bytes_field(2, bytes_field(2, shape_proto({2})) + floats({4})));
  PredictRequestPtr request;
  const Signature signature = x_of(DType::kFloat);
  ASSERT_TRUE(decode_and_bind(parts, signature, &request).ok());
  EXPECT_EQ(request->inputs[0].shape, (Shape{2, 2}));
  EXPECT_EQ(bytes_of(request->inputs[0]), raw<float>({1, 2, 3, 4}));
}

TEST(PredictRequest, SkipsFieldsThatItDoesNotUse) {
  const std::string others = bytes_field(5, varint_field(1, 2)) + bytes_field(6, "client\xff") +
                             bytes_field(7, varint_field(2, 1)) + varint_field(1, 3) + "\xa3\x06\x08\x01\xa4\x06" +
                             bytes_field(1000, "later");
  EXPECT_EQ(error(others + input("x", kOne + others.substr(0, 4)) + others), "");
}

TEST(PredictRequest, RefusesMalformedMessages) {
  const std::string not_allowed = " is not what protobuf's wire format and UTF-8 allow";
  const auto refused = [&](std::string_view part) {
    return "malformed PredictRequest: " + std::string(part) + not_allowed;
  };
  EXPECT_EQ(error("\x0a\x05"
                  "abc"),
            refused("the message"));
  EXPECT_EQ(error(bytes_field(1,
                              "\x0a\x05"
                              "abc")),
            refused("model_spec"));
  EXPECT_EQ(error(bytes_field(1, bytes_field(2, "\x08"))), refused("model_spec"));
  EXPECT_EQ(error(bytes_field(2,
                              "\x0a\x05"
                              "abc")),
            refused("inputs"));
  EXPECT_EQ(error(input("x",
                        "\x0a\x05"
                        "abc")),
            refused("input x"));
  EXPECT_EQ(error(input("x", bytes_field(2,
                                         "\x12\x05"
                                         "abc"))),
            refused("input x"));
  EXPECT_EQ(error(input("x", bytes_field(2, bytes_field(2, "\x08")))), refused("input x"));
  EXPECT_EQ(error(input("x", bytes_field(5, "abc"))), refused("input x")) << "no whole number of floats";
  EXPECT_EQ(error(input("x", bytes_field(12, "abcd"))), refused("input x")) << "no whole number of doubles";
}

TEST(PredictRequest, RefusesTextThatIsNotUtf8) {
  EXPECT_NE(error(bytes_field(1, bytes_field(1, "\xff"))), "");
  EXPECT_NE(error(bytes_field(1, bytes_field(3, "\xff"))), "");
  EXPECT_NE(error(bytes_field(1, bytes_field(4, "\xff"))), "");
  EXPECT_NE(error(bytes_field(3, "\xff")), "");
  EXPECT_NE(error(input("\xff", kOne)), "");
  EXPECT_NE(error(input("x", bytes_field(2, bytes_field(2, bytes_field(2, "\xff"))) + kOne)), "");
}

TEST(PredictRequest, RefusesAPackedRunThatEndsInAValue) {
  for (const Type& type : kTypes) {
    if (type.coding == Coding::kFixed) continue;
    const std::string message = input("x", tensor_proto(type.dtype, {2}, bytes_field(type.field, "\x01\x80")));
    EXPECT_EQ(error(message, x_of(type.dtype)), "tensor parsing error: x: malformed packed values");
  }
}

TEST(PredictRequest, NamesTheInputsThatAreTooManyOrTooFew) {
  EXPECT_EQ(error(input("b", kOne) + input("a", kOne)),
            "input size does not match signature: 2!=1 len({a,b}) != len({x}). Sent extra: {a,b}. Missing but "
            "required: {x}.");
  EXPECT_EQ(
      error(""),
      "input size does not match signature: 0!=1 len({}) != len({x}). Sent extra: {}. Missing but required: {x}.");
  const Signature two = {"s", {spec("y", DType::kFloat), spec("x", DType::kFloat)}, {}};
  EXPECT_EQ(
      error(input("x", kOne) + input("x", kOne), two),
      "input size does not match signature: 1!=2 len({x}) != len({x,y}). Sent extra: {}. Missing but required: {y}.");
}

TEST(PredictRequest, NamesTheInputThatIsMissing) {
  const Signature signature = {"s", {{"x", DType::kFloat, std::nullopt, "x:0"}}, {}};
  EXPECT_EQ(
      error(input("y", kOne), signature),
      "Signature input alias: x(feed name: x:0) not found in request and no default value provided. Inputs expected "
      "to be in the request {y}, or default input alias set: ");
}

TEST(PredictRequest, NamesTheDtypeThatIsWanted) {
  const std::string is_bool = input("x", tensor_proto(DType::kBool, {1}, bytes_field(11, "\1")));
  EXPECT_EQ(error(is_bool), "Expects arg[0] to be float but bool is provided");
  EXPECT_EQ(error(input("x", tensor_proto(DType::kString, {1}, ""))),
            "Expects arg[0] to be float but string is provided");
  const Signature two = {"s", {spec("y", DType::kFloat), spec("x", DType::kHalf)}, {}};
  EXPECT_EQ(error(is_bool + input("y", kOne), two), "Expects arg[1] to be half but bool is provided");
}

TEST(PredictRequest, ChecksTheOutputFilter) {
  const Signature signature = {"s", {spec("x", DType::kFloat)}, {spec("y", DType::kFloat), spec("b", DType::kFloat)}};
  const auto filtered = [&](std::vector<std::string> names) {
    std::string message = input("x", kOne);
    for (const std::string& name : names) message += bytes_field(3, name);
    return error(message, signature);
  };
  EXPECT_EQ(filtered({"y"}), "");
  EXPECT_EQ(filtered({"b", "y"}), "");
  EXPECT_EQ(filtered({"b", "nope"}),
            "output tensor alias not found in signature: nope Outputs expected to be in the set {b,y}.");
  EXPECT_EQ(filtered({"y", "b", "y"}), "duplicate output tensor alias: y");
}

// Distinct names are sorted, not compared with each other one by one: this would take minutes.
TEST(PredictRequest, ReadsVeryManyInputs) {
  std::string message;
  for (int i = 0; i < 200'000; ++i) message += input(std::to_string(i * 7919 % 200'000), "");
  PredictRequestPtr request;
  const Status status = decode_and_bind(message, x_of(DType::kFloat), &request);
  EXPECT_EQ(status.message().substr(0, 49), "input size does not match signature: 200000!=1 le");
}

// --- replies
// ----------------------------------------------------------------------------------------------------------

// A request for outputs of these types, named "0", "1", ..., that takes no inputs.
struct Asked {
  explicit Asked(std::vector<TensorSpec> outputs, std::string_view filter = "") {
    signature.name = "serving_default";
    signature.outputs = std::move(outputs);
    EXPECT_TRUE(decode_and_bind(filter, signature, &request).ok());
  }
  Signature signature;
  PredictRequestPtr request;
};

TensorView view(DType dtype, Shape shape, std::string_view bytes) {
  return {dtype, std::move(shape), reinterpret_cast<const std::byte*>(bytes.data()), bytes.size(), nullptr};
}

// The model_spec of every response here.
const std::string kModelSpec =
    bytes_field(2, bytes_field(1, "model") + bytes_field(2, varint_field(1, 7)) + bytes_field(3, "serving_default"));

std::string output(std::string_view name, std::string_view tensor) {
  return bytes_field(1, bytes_field(1, name) + bytes_field(2, tensor));
}

TEST(PredictResponse, HoldsTypedValuesAndTheResolvedModelSpec) {
  std::mt19937 random(5);
  for (const Type& type : kTypes) {
    SCOPED_TRACE(dtype_name(type.dtype));
    for (std::size_t rows : {1u, 3u, 200u}) {
      const std::string bytes = random_elements(type, rows * 2, random);
      const Shape shape = {static_cast<std::int64_t>(rows), 2};
      Asked asked({spec("y", type.dtype)});
      ASSERT_TRUE(asked.request->write_reply(std::vector{view(type.dtype, shape, bytes)}).ok());
      EXPECT_EQ(asked.request->response(),
                output("y", tensor_proto(type.dtype, shape, packed_field(type, bytes))) + kModelSpec);
    }
  }
}

TEST(PredictResponse, HoldsStrings) {
  Asked asked({spec("y", DType::kString)});
  const std::string_view strings[] = {"a", "", "ccc"};
  const TensorView tensor = {DType::kString, {3}, nullptr, 0, strings};
  ASSERT_TRUE(asked.request->write_reply(std::vector{tensor}).ok());
  const std::string values = bytes_field(8, "a") + bytes_field(8, "") + bytes_field(8, "ccc");
  EXPECT_EQ(asked.request->response(), output("y", tensor_proto(DType::kString, {3}, values)) + kModelSpec);
}

TEST(PredictResponse, HoldsScalarsAndEmptyTensors) {
  Asked asked({spec("scalar", DType::kFloat), spec("empty", DType::kInt64), spec("none", DType::kString)});
  const std::string one = raw<float>({1});
  const std::vector<TensorView> outputs = {
      view(DType::kFloat, {}, one), view(DType::kInt64, {2, 0}, ""), {DType::kString, {0}, nullptr, 0, nullptr}};
  ASSERT_TRUE(asked.request->write_reply(outputs).ok());
  const std::string two_by_none =
      bytes_field(2, bytes_field(2, bytes_field(2, varint_field(1, 2)) + bytes_field(2, "")));
  const std::string no_strings = bytes_field(2, bytes_field(2, bytes_field(2, "")));
  const std::string expected = output("scalar", varint_field(1, 1) + bytes_field(2, "") + floats({1})) +
                               output("empty", varint_field(1, 9) + two_by_none.substr(2)) +
                               output("none", varint_field(1, 7) + no_strings.substr(2)) + kModelSpec;
  EXPECT_EQ(asked.request->response(), expected);
}

TEST(PredictResponse, TakesAnyByteButZeroForTrue) {
  Asked asked({spec("y", DType::kBool)});
  ASSERT_TRUE(asked.request->write_reply(std::vector{view(DType::kBool, {3}, "\0\2\xff"s)}).ok());
  EXPECT_EQ(asked.request->response(),
            output("y", tensor_proto(DType::kBool, {3}, bytes_field(11, "\0\1\1"s))) + kModelSpec);
}

TEST(PredictResponse, IsCutDownToTheFilter) {
  const std::vector<TensorSpec> specs = {spec("a", DType::kFloat), spec("b", DType::kFloat), spec("c", DType::kFloat)};
  Asked asked(specs, bytes_field(3, "c") + bytes_field(3, "a"));
  const std::string a = raw<float>({1}), b = raw<float>({2}), c = raw<float>({3});
  const std::vector<TensorView> outputs = {view(DType::kFloat, {1}, a), view(DType::kFloat, {1}, b),
                                           view(DType::kFloat, {1}, c)};
  ASSERT_TRUE(asked.request->write_reply(outputs).ok());
  EXPECT_EQ(asked.request->response(), output("a", tensor_proto(DType::kFloat, {1}, floats({1}))) +
                                           output("c", tensor_proto(DType::kFloat, {1}, floats({3}))) + kModelSpec);
}

TEST(PredictResponse, LeavesOutWhatIsDefault) {
  const Signature signature;
  PredictRequestPtr request;
  ASSERT_TRUE(decode("", &request).ok());
  ASSERT_TRUE(request->bind(signature, "", 0).ok());
  ASSERT_TRUE(request->write_reply({}).ok());
  EXPECT_EQ(request->response(), bytes_field(2, bytes_field(2, "")));
}

TEST(PredictResponse, RefusesToBeLongerThanAMessage) {
  Asked asked({spec("y", DType::kFloat)});
  TensorView huge = view(DType::kFloat, {1 << 29}, "");
  huge.bytes = std::size_t{4} << 29;  // its memory is never looked at
  const Status status = asked.request->write_reply(std::vector{huge});
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_NE(status.message().find("is larger than a message can be (2147483647)"), std::string::npos)
      << status.message();
}

TEST(PredictResponse, RefusesOutputsThatContradictTheSignature) {
  Asked asked({spec("y", DType::kFloat)});
  const std::string one = raw<float>({1});
  EXPECT_EQ(asked.request->write_reply({}).code(), Code::kInternal);
  EXPECT_EQ(asked.request->write_reply(std::vector{view(DType::kFloat, {2}, one)}).code(), Code::kInternal);
  EXPECT_EQ(asked.request->write_reply(std::vector{view(DType::kFloat, {-1}, one)}).code(), Code::kInternal);
  EXPECT_EQ(asked.request->write_reply(std::vector{view(DType::kInvalid, {1}, one)}).code(), Code::kInternal);
}

TEST(Predict, OfOneRowTakesThreeAllocationsAndOneForItsReply) {
  const std::string message =
      bytes_field(1, bytes_field(1, "digits")) +
      input("x", tensor_proto(DType::kFloat, {1, 784}, bytes_field(5, std::string(784 * 4, 'x'))));
  const Signature signature = x_of(DType::kFloat);
  const std::vector<TensorView> outputs = {
      view(DType::kFloat, {1, 784}, std::string_view(message).substr(message.size() - 3136))};
  const auto owner = std::make_shared<int>();
  PredictRequestPtr request;
  std::size_t before = allocations;
  ASSERT_TRUE(PredictRequest::decode(std::as_bytes(std::span(message)), owner, &request).ok());
  ASSERT_TRUE(request->bind(signature, "digits", 1).ok());
  EXPECT_EQ(allocations - before, 3u);
  before = allocations;
  ASSERT_TRUE(request->write_reply(outputs).ok());
  EXPECT_EQ(allocations - before, 1u);
}

// --- whatever comes in
// ------------------------------------------------------------------------------------------------

// Messages that between them use every field and encoding, each with the signature it fits.
std::vector<std::pair<std::string, Signature>> corpus() {
  std::mt19937 random(6);
  std::vector<std::pair<std::string, Signature>> messages;
  const std::string model_spec =
      bytes_field(1, bytes_field(1, "model") + bytes_field(2, varint_field(1, 300)) + bytes_field(3, "s"));
  const std::string strings = bytes_field(8, "a") + bytes_field(8, "bc");
  const std::string y = input("y", tensor_proto(DType::kString, {2}, strings)) + bytes_field(3, "y");
  for (const Type& type : kTypes) {
    const std::string bytes = random_elements(type, 4, random);
    const std::string values[] = {bytes_field(4, bytes), packed_field(type, bytes), unpacked_fields(type, bytes),
                                  mixed_fields(type, bytes, random), packed_field(type, bytes.substr(0, type.width))};
    const Signature signature = {
        "s", {spec("x", type.dtype), spec("y", DType::kString)}, {spec("x", type.dtype), spec("y", DType::kString)}};
    for (const std::string& value : values)
      messages.emplace_back(model_spec + input("x", tensor_proto(type.dtype, {2, 2}, value)) + y, signature);
  }
  const Signature only_y = {"s", {spec("y", DType::kString)}, {spec("y", DType::kString)}};
  messages.emplace_back(input("y", tensor_proto(DType::kString, {2}, bytes_field(4, "\1\2abc"))), only_y);
  messages.emplace_back(
      bytes_field(1, bytes_field(4, "label")) + y + "\xa3\x06\x08\x01\xa4\x06" + bytes_field(5, "\x08\x01"), only_y);
  return messages;
}

// Decodes, and looks at every byte of what came out; with the inputs as outputs, also encodes, and the reply must then
// decode to the same.  Returns whether the message was accepted.
bool survives(std::string_view message, const Signature& signature) {
  constexpr std::size_t kUnfoldedBytesMax = 1 << 16;
  PredictRequestPtr request;
  const Status status = decode_and_bind(message, signature, &request, kUnfoldedBytesMax);
  if (!status.ok()) {
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.message(), "");
    return false;
  }
  const Status written = request->write_reply(request->inputs);
  EXPECT_TRUE(written.ok()) << written.message();
  // A map entry of the outputs is one of the inputs, but for its number.
  std::string back = request->response();
  for (std::size_t at = 0; at < back.size() && back[at] == '\x0a';) {
    back[at++] = '\x12';
    std::size_t length = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(back[at++]);
      length |= std::size_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) break;
    }
    at += length;
  }
  std::vector<std::size_t> kept;
  Signature answered;
  for (std::size_t i = 0; i < signature.outputs.size(); ++i) {
    const std::string& name = signature.outputs[i].name;
    if (request->response().find(bytes_field(1, name)) == std::string::npos) continue;  // left out by the filter
    kept.push_back(i);
    answered.inputs.push_back(signature.outputs[i]);
  }
  back.resize(
      back.rfind(bytes_field(2, bytes_field(1, "model") + bytes_field(2, varint_field(1, 7)) + bytes_field(3, "s"))));
  PredictRequestPtr again;
  const Status decoded_again = decode_and_bind(back, answered, &again);
  EXPECT_TRUE(decoded_again.ok()) << decoded_again.message();
  if (!decoded_again.ok()) return true;
  for (std::size_t k = 0; k < kept.size(); ++k) {
    const TensorView& was = request->inputs[kept[k]];
    const TensorView& is = again->inputs[k];
    EXPECT_EQ(is.shape, was.shape);
    EXPECT_EQ(is.dtype, was.dtype);
    if (was.dtype == DType::kString) {
      EXPECT_TRUE(std::equal(was.strings, was.strings + was.elements(), is.strings));
    } else {
      EXPECT_EQ(bytes_of(is), bytes_of(was));
    }
  }
  return true;
}

TEST(Predict, DecodesTheCorpusAndWhatItWritesItself) {
  for (const auto& [message, signature] : corpus()) EXPECT_TRUE(survives(message, signature));
}

TEST(Predict, SurvivesEveryTruncation) {
  for (const auto& [message, signature] : corpus())
    for (std::size_t cut = 0; cut < message.size(); ++cut)
      survives(std::string_view(message).substr(0, cut), signature);
}

TEST(Predict, SurvivesEveryByteSetToExtremes) {
  for (const auto& [message, signature] : corpus()) {
    for (std::size_t at = 0; at < message.size(); ++at) {
      for (char value : {'\x00', '\x01', '\x7f', '\x80', '\xff'}) {
        std::string changed = message;
        changed[at] = value;
        survives(changed, signature);
      }
    }
  }
}

TEST(Predict, SurvivesRandomDamage) {
  std::mt19937 random(7);
  const auto messages = corpus();
  int accepted = 0;
  constexpr int kTries = 20'000;
  for (int i = 0; i < kTries; ++i) {
    auto [message, signature] = messages[random() % messages.size()];
    for (std::size_t damage = 1 + random() % 4; damage > 0 && !message.empty(); --damage) {
      const std::size_t at = random() % message.size();
      const std::size_t length = std::min<std::size_t>(random() % 8, message.size() - at);
      switch (random() % 5) {
        case 0:
          message[at] = static_cast<char>(random());
          break;
        case 1:
          message[at] = static_cast<char>(message[at] ^ (1 << random() % 8));
          break;
        case 2:
          message.erase(at, length);
          break;
        case 3:
          message.insert(at, message.substr(random() % message.size(), length));
          break;
        default:
          message.insert(at, varint(random()));
          break;
      }
    }
    accepted += survives(message, signature);
  }
  EXPECT_GT(accepted, kTries / 100);
  EXPECT_LT(accepted, kTries / 2);
}

}  // namespace
}  // namespace headrace
