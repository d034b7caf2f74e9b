// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include "core/signature.h"

namespace headrace {
namespace {

TEST(Signature, FindsInputsAndOutputsByTheNamesClientsUse) {
  const Signature signature{.name = "serving_default",
                            .inputs = {{.name = "b", .dtype = DType::kFloat, .shape = {}, .tensor_name = "a:0"},
                                       {.name = "a", .dtype = DType::kFloat, .shape = {}, .tensor_name = "b:0"}},
                            .outputs = {{.name = "y", .dtype = DType::kFloat, .shape = {}, .tensor_name = "a"}}};
  EXPECT_EQ(signature.input_index("b"), 0);
  EXPECT_EQ(signature.input_index("a"), 1);
  EXPECT_EQ(signature.output_index("y"), 0);
  EXPECT_EQ(signature.input_index("y"), -1);
  EXPECT_EQ(signature.output_index("a"), -1);
  EXPECT_EQ(signature.input_index(""), -1);
}

}  // namespace
}  // namespace headrace
