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
#include <optional>
#include <span>
#include <string>
#include <string_view>

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

class PredictRequest;
using PredictRequestPtr = boost::intrusive_ptr<PredictRequest>;

class PredictRequest final : public Request {
 public:
  // Stage 2: decodes and checks a whole message, whose bytes live as long as `owner`.  Every malformed message is
  // INVALID_ARGUMENT: a TensorProto that contradicts itself is "tensor parsing error: ALIAS", as in TF Serving.
  static Status decode(std::span<const std::byte> message, std::shared_ptr<const void> owner, PredictRequestPtr* out);

  const ModelSpec& model_spec() const;

  // Puts the inputs in the signature's order and checks names, dtypes and the output filter against it, with
  // TF Serving's texts (names: "input size does not match signature: ..."; dtype: "Expects arg[0] to be float but
  // bool is provided").  `model_name` and `version` go into the response's model_spec.
  // `signature` outlives the request.
  Status bind(const Signature& signature, std::string_view model_name, std::int64_t version);

  // Encodes the PredictResponse: typed *_val fields, outputs cut down to the filter, the resolved model_spec.
  Status write_reply(std::span<const TensorView> outputs) override;

  // The encoded PredictResponse, once the request was answered with OK.
  const std::string& response() const;
};

}  // namespace headrace
