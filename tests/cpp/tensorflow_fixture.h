// SPDX-License-Identifier: Apache-2.0
//
// A test over fake_tensorflow.cc, with a session of it.

#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <memory>

#include "core/tensor.h"
#include "run/tensorflow_session.h"

namespace headrace {

class TensorFlowTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fake_ = dlopen(FAKE_TENSORFLOW_PATH, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(fake_, nullptr) << dlerror();
    tensors_before_ = count("fake_live_tensors");
    Status status = TensorFlowLibrary::load(FAKE_TENSORFLOW_PATH, &library_);
    ASSERT_TRUE(status.ok()) << status.message();
    status = TensorFlowSession::load(library_, "/models/x/1", {"serve"}, "config", &session_);
    ASSERT_TRUE(status.ok()) << status.message();
  }

  void TearDown() override {
    session_.reset();
    EXPECT_EQ(count("fake_live_tensors"), tensors_before_);
    EXPECT_EQ(count("fake_live_sessions"), 0);
  }

  int count(const char* name) { return reinterpret_cast<int (*)()>(dlsym(fake_, name))(); }
  const char* text(const char* name) { return reinterpret_cast<const char* (*)()>(dlsym(fake_, name))(); }

  std::shared_ptr<const TensorFlowLibrary> library_;
  std::shared_ptr<TensorFlowSession> session_;

 private:
  void* fake_ = nullptr;
  int tensors_before_ = 0;
};

// A view of floats that the caller keeps.
inline TensorView floats_view(const float* values, Shape shape) {
  TensorView view;
  view.dtype = DType::kFloat;
  view.shape = std::move(shape);
  view.data = reinterpret_cast<const std::byte*>(values);
  view.bytes = static_cast<std::size_t>(view.elements()) * sizeof(float);
  return view;
}

inline float float_at(const TensorView& view, std::size_t i) { return reinterpret_cast<const float*>(view.data)[i]; }

}  // namespace headrace
