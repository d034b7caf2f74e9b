// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "run/tensorflow_session.h"
#include "tensorflow_fixture.h"

namespace headrace {
namespace {

class TensorFlowSessionTest : public TensorFlowTest {
 protected:
  TF_Output tensor(const std::string& name) {
    TF_Output found{};
    const Status status = session_->find(name, &found);
    EXPECT_TRUE(status.ok()) << status.message();
    return found;
  }

  Status run(const TensorView& value, const std::string& feed, const std::string& fetch, Outputs* outputs) {
    const TF_Output input = tensor(feed), output = tensor(fetch);
    return session_->run({&input, 1}, {&value, 1}, keeper_, {&output, 1}, "options", outputs);
  }

  std::shared_ptr<int> keeper_ = std::make_shared<int>(0);
};

TEST_F(TensorFlowSessionTest, PassesTheConfigAndTheRunOptionsOn) {
  EXPECT_STREQ(text("fake_config"), "config");
  const float x[] = {1};
  Outputs outputs;
  ASSERT_TRUE(run(floats_view(x, {1}), "x:0", "double:0", &outputs).ok());
  EXPECT_STREQ(text("fake_options"), "options");
}

TEST_F(TensorFlowSessionTest, LoadsNothingWithABadConfigOrWithOtherTags) {
  std::shared_ptr<TensorFlowSession> session;
  Status status = TensorFlowSession::load(library_, "/m", {"serve"}, "bad", &session);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_EQ(status.message(), "Unparseable ConfigProto");
  status = TensorFlowSession::load(library_, "/m", {"train"}, "", &session);
  EXPECT_EQ(status.code(), Code::kNotFound);
  EXPECT_EQ(status.message(), "no such tags in /m");
  EXPECT_EQ(session, nullptr);
}

TEST_F(TensorFlowSessionTest, ListsDevicesByNameAndType) {
  std::vector<TensorFlowSession::Device> devices;
  ASSERT_TRUE(session_->list_devices(&devices).ok());
  ASSERT_EQ(devices.size(), 2u);
  EXPECT_EQ(devices[1].name, "/device:GPU:0");
  EXPECT_EQ(devices[1].type, "GPU");
}

TEST_F(TensorFlowSessionTest, FindsTensorsByOperationAndIndex) {
  EXPECT_EQ(tensor("pair:1").index, 1);
  EXPECT_EQ(tensor("x").oper, tensor("x:0").oper);
  EXPECT_EQ(session_->type(tensor("pair:1")), DType::kInt64);
  EXPECT_EQ(session_->type(tensor("strange:0")), DType::kFloat);  // a reference to a float
  TF_Output found;
  EXPECT_EQ(session_->find("pair:2", &found).message(), "the graph has no tensor \"pair:2\"");
  EXPECT_EQ(session_->find("nothing:0", &found).code(), Code::kNotFound);
  for (const char* name : {"x:", "x:y", "x:-1", "x:0 ", "x:99999999999"})
    EXPECT_EQ(session_->find(name, &found).code(), Code::kInvalidArgument) << name;
}

TEST_F(TensorFlowSessionTest, FeedsTheCallersOwnMemory) {
  const float x[] = {1, 2, 3, 4};
  Outputs outputs;
  ASSERT_TRUE(run(floats_view(x, {2, 2}), "x:0", "same:0", &outputs).ok());
  EXPECT_EQ(outputs.tensors[0].data, reinterpret_cast<const std::byte*>(x));
  EXPECT_EQ(outputs.tensors[0].shape, (Shape{2, 2}));
  EXPECT_EQ(keeper_.use_count(), 2);
  outputs = {};
  EXPECT_EQ(keeper_.use_count(), 1);
}

TEST_F(TensorFlowSessionTest, KeepsTheKeeperWhileTensorFlowKeepsTheMemory) {
  const float x[] = {1, 2};
  Outputs outputs;
  ASSERT_TRUE(run(floats_view(x, {2}), "x:0", "adopt:0", &outputs).ok());
  outputs = {};
  EXPECT_EQ(keeper_.use_count(), 2);
  const float y[] = {3};
  ASSERT_TRUE(run(floats_view(y, {1}), "x:0", "adopt:0", &outputs).ok());
  EXPECT_EQ(float_at(outputs.tensors[0], 1), 2);
  EXPECT_EQ(keeper_.use_count(), 3);  // the output is x, the variable has y
  outputs = {};
  EXPECT_EQ(keeper_.use_count(), 2);
  session_.reset();
  EXPECT_EQ(keeper_.use_count(), 1);
}

TEST_F(TensorFlowSessionTest, CopiesStringsBothWays) {
  const std::string_view strings[] = {"a", "", std::string_view("b\0c", 3), "longer than twenty-two characters"};
  TensorView s;
  s.dtype = DType::kString;
  s.shape = {2, 2};
  s.strings = strings;
  Outputs outputs;
  ASSERT_TRUE(run(s, "s:0", "shout:0", &outputs).ok());
  const TensorView& shouted = outputs.tensors[0];
  EXPECT_EQ(shouted.dtype, DType::kString);
  EXPECT_EQ(shouted.shape, (Shape{2, 2}));
  ASSERT_NE(shouted.strings, nullptr);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(shouted.strings[i], std::string(strings[i]) + "!");
}

TEST_F(TensorFlowSessionTest, TakesTensorsWithoutElements) {
  Outputs outputs;
  ASSERT_TRUE(run(floats_view(nullptr, {0, 3}), "x:0", "double:0", &outputs).ok());
  EXPECT_EQ(outputs.tensors[0].shape, (Shape{0, 3}));
  EXPECT_EQ(outputs.tensors[0].bytes, 0u);
  TensorView s;
  s.dtype = DType::kString;
  s.shape = {0};
  const std::string_view none;
  s.strings = &none;
  ASSERT_TRUE(run(s, "s:0", "shout:0", &outputs).ok());
  EXPECT_NE(outputs.tensors[0].strings, nullptr);
}

TEST_F(TensorFlowSessionTest, ReportsTensorFlowsCodeAndMessage) {
  const float x[] = {1};
  Outputs outputs;
  Status status = run(floats_view(x, {1}), "x:0", "refuse:0", &outputs);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_EQ(status.message(), "the model refuses");
  EXPECT_EQ(run(floats_view(x, {1}), "x:0", "strange:0", &outputs).code(), Code::kUnknown);
  EXPECT_EQ(keeper_.use_count(), 1);
}

TEST_F(TensorFlowSessionTest, OutputsOutliveTheSession) {
  const float x[] = {1, 2};
  Outputs outputs;
  ASSERT_TRUE(run(floats_view(x, {2}), "x:0", "double:0", &outputs).ok());
  session_.reset();
  EXPECT_EQ(float_at(outputs.tensors[0], 1), 4);
}

}  // namespace
}  // namespace headrace
