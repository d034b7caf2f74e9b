// SPDX-License-Identifier: Apache-2.0
//
// The signatures that fuzz_predict serves, chosen by the first byte of its input.  Outputs are the inputs.
//
// Thread safety: pure.

#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "core/signature.h"

namespace headrace {

inline std::vector<Signature> predict_signatures() {
  const auto echo = [](const char* name, std::vector<TensorSpec> specs) {
    return Signature{.name = name, .inputs = specs, .outputs = specs};
  };
  const auto spec = [](const char* name, DType dtype, std::optional<Shape> shape) {
    return TensorSpec{.name = name, .dtype = dtype, .shape = std::move(shape), .tensor_name = ""};
  };
  std::vector<Signature> signatures;
  signatures.push_back(echo("floats", {spec("x", DType::kFloat, Shape{-1, -1})}));
  signatures.push_back(echo("strings", {spec("x", DType::kString, Shape{-1})}));
  signatures.push_back(echo("two", {spec("x", DType::kInt64, Shape{-1, 2}), spec("y", DType::kBool, Shape{-1})}));
  signatures.push_back(echo("any_rank", {spec("x", DType::kInt32, std::nullopt)}));
  signatures.push_back(echo("any_dtype", {spec("x", DType::kInvalid, std::nullopt)}));
  signatures.push_back(echo("halves", {spec("x", DType::kHalf, Shape{-1, 3})}));
  return signatures;
}

}  // namespace headrace
