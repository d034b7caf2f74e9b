// SPDX-License-Identifier: Apache-2.0
//
// Signature: the inputs and outputs of one callable of a model, in a fixed order.
//
// Thread safety: built once, read only from then on.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor.h"

namespace headrace {

struct TensorSpec {
  std::string name;               // what clients call it
  DType dtype = DType::kInvalid;  // kInvalid: open, of whatever type comes
  std::optional<Shape> shape;     // with the batch dimension; -1 where open; nullopt where the rank is open
  std::string tensor_name;        // what the graph calls it ("x:0"); empty for callables
  bool optional = false;          // a request may leave it out
};

struct Signature {
  std::string name;  // "serving_default"
  std::vector<TensorSpec> inputs;
  std::vector<TensorSpec> outputs;  // none: open, each run names its own

  // Position of the input or output of that name, or -1.
  int input_index(std::string_view input) const { return index(inputs, input); }
  int output_index(std::string_view output) const { return index(outputs, output); }

 private:
  static int index(const std::vector<TensorSpec>& specs, std::string_view name) {
    for (std::size_t i = 0; i < specs.size(); ++i)
      if (specs[i].name == name) return static_cast<int>(i);
    return -1;
  }
};

}  // namespace headrace
