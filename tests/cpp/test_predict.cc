// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "messages.h"
#include "wire/predict.h"

namespace {

std::size_t allocations = 0;

}  // namespace

// Counts what the codec allocates.  Not inlined, or GCC takes them for a mismatch of new and free.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace headrace {
namespace {

using namespace std::string_literals;

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

TEST(PredictRequest, ChargesAllInputsOfARequestToOneBudget) {
  const Signature signature = {"s", {spec("a", DType::kFloat), spec("b", DType::kFloat)}, {}};
  const std::string tensor = tensor_proto(DType::kFloat, {150}, floats({1}));
  EXPECT_EQ(error(input("a", tensor) + input("b", tensor), signature, 1200), "");
  EXPECT_EQ(error(input("a", tensor) + input("b", tensor), signature, 1199),
            "tensor parsing error: b: float[150] takes more than the 599 bytes left of what the values of one request "
            "may unfold to; send fewer");
}

TEST(PredictRequest, KeepsTheMessageForTheViewsIntoIt) {
  const std::string message = input("x", kOne);
  const Signature signature = x_of(DType::kFloat);
  const auto owner = std::make_shared<int>();
  PredictRequestPtr request;
  ASSERT_TRUE(PredictRequest::decode(std::as_bytes(std::span(message)), owner, &request).ok());
  EXPECT_EQ(owner.use_count(), 2);
  ASSERT_TRUE(request->bind(signature, "m", 1).ok());
  EXPECT_EQ(reinterpret_cast<const char*>(request->inputs[0].data), message.data() + message.size() - 4);
  request.reset();
  EXPECT_EQ(owner.use_count(), 1);
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
  EXPECT_EQ(
      error(others + input("x", kOne + varint_field(3, 1) + bytes_field(14, "r") + bytes_field(99, "?")) + others), "");
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
  for (int i = 0; i < 30'000; ++i) message += input(std::to_string(i * 7919 % 30'000), "");
  PredictRequestPtr request;
  const Status status = decode_and_bind(message, x_of(DType::kFloat), &request);
  EXPECT_EQ(status.message().substr(0, 48), "input size does not match signature: 30000!=1 le");
}

// Two bytes each in the message, and many times that in memory.
TEST(PredictRequest, RefusesMoreEntriesThanAnySignatureHas) {
  const std::string text = "the message has more than 65536 inputs, values of inputs and output filters; send fewer";
  std::string inputs, filters;
  for (std::size_t i = 0; i <= PredictRequest::kEntriesMax; ++i) {
    inputs += std::string("\x12\x00", 2);
    filters += std::string("\x1a\x00", 2);
  }
  std::string values;
  for (std::size_t i = 0; i <= PredictRequest::kEntriesMax; ++i) values += std::string("\x12\x00", 2);
  std::string one_input = "\x12";
  for (std::size_t size = values.size(); size != 0; size >>= 7)
    one_input += static_cast<char>((size & 0x7F) | (size > 0x7F ? 0x80 : 0));
  one_input += values;
  for (const std::string& message : {inputs, filters, one_input}) {
    PredictRequestPtr request;
    EXPECT_EQ(decode_and_bind(message, x_of(DType::kFloat), &request).message(), text);
  }
}

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
