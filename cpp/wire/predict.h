// SPDX-License-Identifier: Apache-2.0
//
// PredictRequest: tensorflow.serving.PredictRequest decoded in place, and its PredictResponse.
// The messages are those of tensorflow_serving/apis/predict.proto and tensorflow/core/framework/tensor.proto.
//
// Thread safety: as Request.
// Ownership: keeps the message's memory through `owner`; tensor views point into the message wherever its bytes are
//   the tensor's (tensor_content, one packed run of fixed-width values), else into the request's own storage.

#pragma once

#include <boost/smart_ptr/intrusive_ptr.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/request.h"
#include "core/signature.h"
#include "core/status.h"

namespace headrace {

// tensorflow.serving.ModelSpec; views into the message.
struct ModelSpec {
  bool present = false;
  std::string_view name;
  std::optional<std::int64_t> version;
  std::optional<std::string_view> version_label;
  std::string_view signature_name;  // empty: serving_default
};

// The largest message that gRPC and protobuf can carry.
inline constexpr std::size_t kMessageBytesMax = 0x7FFFFFFF;

class PredictRequest;
using PredictRequestPtr = boost::intrusive_ptr<PredictRequest>;

class PredictRequest final : public Request {
 public:
  // Inputs, values of inputs and output filters together; far above what a signature has.
  static constexpr std::size_t kEntriesMax = 65'536;

  // Stage 2: reads a whole message, whose bytes live as long as `owner`.  Every malformed message is INVALID_ARGUMENT.
  static Status decode(std::span<const std::byte> message, std::shared_ptr<const void> owner, PredictRequestPtr* out);

  ~PredictRequest() override;

  const ModelSpec& model_spec() const { return model_spec_; }

  // Puts the inputs in the signature's order and checks names, tensors, the output filter and dtypes against it, with
  // TF Serving's texts and in its order (names: "input size does not match signature: ..."; a TensorProto that
  // contradicts itself: "tensor parsing error: ALIAS"; dtype: "Expects arg[0] to be float but bool is provided").
  // `model_name` and `version` go into the response's model_spec.  `signature` outlives the request.
  // Values that are not used in place (repeated, varint-encoded, strings) take at most `unfolded_bytes_max`.
  Status bind(const Signature& signature, std::string_view model_name, std::int64_t version,
              std::size_t unfolded_bytes_max = kMessageBytesMax);

  // Encodes the PredictResponse: typed *_val fields, outputs cut down to the filter, the resolved model_spec.
  // REQUIRES: bind() was OK.
  Status write_reply(std::span<const TensorView> outputs) override;

  // The encoded PredictResponse, once the request was answered with OK.
  const std::string& response() const { return response_; }

 private:
  struct Input;

  PredictRequest();

  Status parse(std::string_view message);
  Status parse_input(std::string_view entry);
  bool parse_model_spec(std::string_view message);
  bool parse_version(std::string_view int64_value);
  void drop_replaced_inputs();

  Input* find_input(std::string_view name);
  Status bind_inputs(std::size_t unfolded_bytes_max);
  Status bind_outputs();
  bool outputs_are_open() const { return signature_->outputs.empty(); }
  std::size_t output_count() const {
    if (!outputs_are_open()) return signature_->outputs.size();
    return output_names == nullptr ? 0 : output_names->size();
  }
  const std::string& output_name(std::size_t i) const {
    return outputs_are_open() ? (*output_names)[i] : signature_->outputs[i].name;
  }
  Status check_dtypes() const;
  Status encode(std::span<const TensorView> outputs);

  static constexpr std::size_t kArenaBytes = 448;

  std::shared_ptr<const void> owner_;
  ModelSpec model_spec_;
  const Signature* signature_ = nullptr;
  std::string_view model_name_;
  std::int64_t version_ = 0;
  std::string response_;
  std::size_t entries_ = 0;

  // Everything of a usual request lies in the first bytes, so that a small one takes three allocations: itself, the
  // list of inputs, and a shape.
  alignas(std::max_align_t) std::byte arena_bytes_[kArenaBytes];
  std::pmr::monotonic_buffer_resource arena_{arena_bytes_, kArenaBytes};
  std::pmr::vector<Input> inputs_;  // sorted by name once the message is read
  std::pmr::vector<std::string_view> output_filter_{&arena_};
  std::pmr::vector<std::uint32_t> outputs_{&arena_};  // positions of those asked for
};

}  // namespace headrace
