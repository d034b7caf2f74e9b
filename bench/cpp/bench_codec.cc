// SPDX-License-Identifier: Apache-2.0
//
// The two copies of a request, and the codec around them: decode and bind of a 1x784 float PredictRequest, gather of
// 64 of them into a slab, encoding of a 1x10 float PredictResponse.  The floor is a memcpy of the same bytes.

#include <benchmark/benchmark.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/batch.h"
#include "core/slab.h"
#include "wire/predict.h"
#include "wire/proto.h"

namespace headrace {
namespace {

constexpr std::size_t kPixels = 784;
constexpr std::size_t kClasses = 10;
constexpr std::size_t kRows = 64;
constexpr std::size_t kRowBytes = kPixels * sizeof(float);

const Signature& mnist() {
  static const Signature signature{
      .name = "serving_default",
      .inputs = {{.name = "x", .dtype = DType::kFloat, .shape = Shape{-1, kPixels}, .tensor_name = "x:0"}},
      .outputs = {{.name = "y", .dtype = DType::kFloat, .shape = Shape{-1, kClasses}, .tensor_name = "y:0"}}};
  return signature;
}

std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes.push_back(static_cast<char>(value | 0x80));
  bytes.push_back(static_cast<char>(value));
  return bytes;
}

std::string number_field(std::uint32_t number, std::uint64_t value) {
  return varint(make_tag(number, WireType::kVarint)) + varint(value);
}

std::string bytes_field(std::uint32_t number, const std::string& bytes) {
  return varint(make_tag(number, WireType::kBytes)) + varint(bytes.size()) + bytes;
}

enum class Values { kTensorContent, kFloatVal };

// model_spec {name: "mnist"}, inputs {"x": float[1,784]}.
std::string predict_message(Values values) {
  const std::string pixels(kRowBytes, '\x3f');
  const std::string shape = bytes_field(2, number_field(1, 1)) + bytes_field(2, number_field(1, kPixels));
  const std::string tensor = number_field(1, static_cast<std::uint64_t>(DType::kFloat)) + bytes_field(2, shape) +
                             bytes_field(values == Values::kTensorContent ? 4 : 5, pixels);
  return bytes_field(1, bytes_field(1, "mnist")) + bytes_field(2, bytes_field(1, "x") + bytes_field(2, tensor));
}

PredictRequestPtr decoded(const std::shared_ptr<const std::string>& message) {
  PredictRequestPtr request;
  Status status = PredictRequest::decode(std::as_bytes(std::span(*message)), message, &request);
  if (status.ok()) status = request->bind(mnist(), "mnist", 1);
  if (status.ok()) request->rows = 1;
  return status.ok() ? request : nullptr;
}

template <Values values>
void decode(benchmark::State& state) {
  const auto message = std::make_shared<const std::string>(predict_message(values));
  for ([[maybe_unused]] auto iteration : state) {
    const PredictRequestPtr request = decoded(message);
    if (request == nullptr) state.SkipWithError("the message was refused");
    benchmark::DoNotOptimize(request.get());
  }
}

// Time is per row.
void gather(benchmark::State& state) {
  SlabPool slabs(nullptr);
  std::vector<std::shared_ptr<const std::string>> messages;
  for (std::size_t i = 0; i < kRows; ++i)
    messages.push_back(std::make_shared<const std::string>(predict_message(Values::kTensorContent)));
  std::vector<RequestPtr> requests;
  for (const auto& message : messages) requests.push_back(decoded(message));
  while (state.KeepRunningBatch(kRows)) {
    Batch batch(requests, BatchReason::kFull, 0);
    if (!batch.gather(slabs).ok()) state.SkipWithError("no slab");
    benchmark::DoNotOptimize(batch.inputs().front().data);
  }
}

void encode(benchmark::State& state) {
  const auto message = std::make_shared<const std::string>(predict_message(Values::kTensorContent));
  const PredictRequestPtr request = decoded(message);
  const std::array<float, kClasses> scores{};
  const TensorView output{.dtype = DType::kFloat,
                          .shape = {1, kClasses},
                          .data = reinterpret_cast<const std::byte*>(scores.data()),
                          .bytes = sizeof(scores)};
  for ([[maybe_unused]] auto iteration : state) {
    if (!request->write_reply(std::span(&output, 1)).ok()) state.SkipWithError("not encoded");
    benchmark::DoNotOptimize(request->response().data());
  }
}

// From as many buffers as gather() has, so that the caches see the same.
void copy_floor(benchmark::State& state) {
  const std::vector<std::string> rows(kRows, std::string(kRowBytes, '\x3f'));
  std::vector<char> slab(kRows * kRowBytes);
  while (state.KeepRunningBatch(kRows)) {
    for (std::size_t i = 0; i < kRows; ++i) std::memcpy(slab.data() + i * kRowBytes, rows[i].data(), kRowBytes);
    benchmark::DoNotOptimize(slab.data());
    benchmark::ClobberMemory();
  }
}

BENCHMARK(decode<Values::kTensorContent>)->Name("codec/decode_1x784/tensor_content");
BENCHMARK(decode<Values::kFloatVal>)->Name("codec/decode_1x784/float_val");
BENCHMARK(gather)->Name("codec/gather_64x784/headrace");
BENCHMARK(copy_floor)->Name("codec/gather_64x784/memcpy_floor");
BENCHMARK(encode)->Name("codec/encode_1x10/headrace");

}  // namespace
}  // namespace headrace
