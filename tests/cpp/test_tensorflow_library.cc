// SPDX-License-Identifier: Apache-2.0

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <memory>

#include "run/tensorflow_library.h"

namespace headrace {
namespace {

std::string why_not(const std::string& path) {
  std::shared_ptr<const TensorFlowLibrary> library;
  const Status status = TensorFlowLibrary::load(path, &library);
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_EQ(library, nullptr);
  return status.message();
}

TEST(TensorFlowLibrary, FindsEveryFunctionOfTheApi) {
  std::shared_ptr<const TensorFlowLibrary> library;
  ASSERT_TRUE(TensorFlowLibrary::load(FAKE_TENSORFLOW_PATH, &library).ok());
#define EXPECT_FOUND(result, name, parameters) EXPECT_NE(library->api().name, nullptr) << #name;
  HEADRACE_TENSORFLOW_FUNCTIONS(EXPECT_FOUND)
#undef EXPECT_FOUND
  EXPECT_EQ(library->version(), "2.0.0-fake");
}

TEST(TensorFlowLibrary, StaysOutOfTheGlobalScope) {
  std::shared_ptr<const TensorFlowLibrary> library;
  ASSERT_TRUE(TensorFlowLibrary::load(FAKE_TENSORFLOW_PATH, &library).ok());
  EXPECT_EQ(dlsym(RTLD_DEFAULT, "TF_Version"), nullptr);
}

TEST(TensorFlowLibrary, NamesAFileThatCannotBeLoaded) {
  const std::string text = why_not("/no/such/libtensorflow_cc.so.2");
  EXPECT_EQ(text.find("TensorFlow cannot be loaded: /no/such/libtensorflow_cc.so.2: "), 0u) << text;
}

TEST(TensorFlowLibrary, NamesAFunctionThatIsMissing) {
  EXPECT_EQ(why_not("libm.so.6"), "libm.so.6 has no function TF_Version; TensorFlow 2.16 or newer is needed");
}

}  // namespace
}  // namespace headrace
