// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/request.h"
#include "core/slab.h"
#include "run/tensorflow.h"
#include "tensorflow_fixture.h"

namespace headrace {
namespace {

// A request of rows of two floats, which keeps what it is answered.
class Rows final : public Request {
 public:
  explicit Rows(std::vector<float> values) : values_(std::move(values)) {
    rows = static_cast<std::int64_t>(values_.size() / 2);
    inputs = {floats_view(values_.data(), {rows, 2})};
  }

  Status write_reply(std::span<const TensorView> outputs) override {
    for (const TensorView& output : outputs) {
      answers.emplace_back(static_cast<std::size_t>(output.elements()));
      if (output.bytes != 0) std::memcpy(answers.back().data(), output.data, output.bytes);
    }
    return {};
  }

  std::vector<std::vector<float>> answers;

 private:
  std::vector<float> values_;
};

class IgnoredReplies final : public ReplySink {
 public:
  void deliver(std::span<const RequestPtr>) noexcept override {}
};

class TensorFlowRunnerTest : public TensorFlowTest {
 protected:
  void TearDown() override {
    runner_.reset();
    TensorFlowTest::TearDown();
  }

  using Names = std::vector<std::pair<std::string, std::string>>;

  // A signature of float tensors: (name, tensor name) of inputs and outputs.
  Status make(const Names& inputs, const Names& outputs) {
    Signature signature{"f", {}, {}};
    for (const auto& [name, tensor] : inputs) signature.inputs.push_back({name, DType::kFloat, std::nullopt, tensor});
    for (const auto& [name, tensor] : outputs) signature.outputs.push_back({name, DType::kFloat, std::nullopt, tensor});
    return TensorFlowRunner::make(session_, signature, "run options", &runner_);
  }

  // Runs rows of two floats as one batch and answers its requests.
  Status run(const std::vector<boost::intrusive_ptr<Rows>>& requests) {
    std::vector<RequestPtr> taken;
    for (const auto& request : requests) {
      request->sink = &sink_;
      taken.push_back(request);
    }
    Batch batch(std::move(taken), BatchReason::kFull, 0);
    EXPECT_TRUE(batch.gather(slabs_).ok());
    batch.start(0);
    Outputs outputs;
    Status status = runner_->run(batch, &outputs);
    batch.finish(status, outputs, 0);
    return status;
  }

  SlabPool slabs_{nullptr};
  std::shared_ptr<TensorFlowRunner> runner_;

 private:
  IgnoredReplies sink_;
};

boost::intrusive_ptr<Rows> rows(std::vector<float> values) { return {new Rows(std::move(values))}; }

TEST_F(TensorFlowRunnerTest, RunsABatchAndGivesTheOutputsInTheSignaturesOrder) {
  ASSERT_TRUE(make({{"in", "x:0"}}, {{"plus", "pair:0"}, {"twice", "double:0"}}).ok());
  const auto first = rows({1, 2}), second = rows({3, 4, 5, 6});
  ASSERT_TRUE(run({first, second}).ok());
  EXPECT_EQ(first->answers, (std::vector<std::vector<float>>{{2, 3}, {2, 4}}));
  EXPECT_EQ(second->answers, (std::vector<std::vector<float>>{{4, 5, 6, 7}, {6, 8, 10, 12}}));
  EXPECT_EQ(count("fake_fetches"), 2);
  EXPECT_STREQ(text("fake_options"), "run options");
}

TEST_F(TensorFlowRunnerTest, FetchesATensorOnceThatHasTwoNames) {
  ASSERT_TRUE(make({{"x", "x:0"}}, {{"a", "double:0"}, {"b", "double"}, {"c", "double:0"}}).ok());
  const auto request = rows({1, 2});
  ASSERT_TRUE(run({request}).ok());
  EXPECT_EQ(request->answers, (std::vector<std::vector<float>>(3, {2, 4})));
  EXPECT_EQ(count("fake_fetches"), 1);
}

TEST_F(TensorFlowRunnerTest, AnswersAFedTensorFromTheInput) {
  ASSERT_TRUE(make({{"x", "x:0"}}, {{"fed", "x"}, {"twice", "double:0"}}).ok());
  const auto request = rows({1, 2});
  ASSERT_TRUE(run({request}).ok());
  EXPECT_EQ(request->answers, (std::vector<std::vector<float>>{{1, 2}, {2, 4}}));
  EXPECT_EQ(count("fake_fetches"), 1);
}

TEST_F(TensorFlowRunnerTest, RunsNothingWhereEveryOutputIsFed) {
  ASSERT_TRUE(make({{"x", "x:0"}}, {{"y", "x:0"}}).ok());
  const int runs = count("fake_runs");
  const auto request = rows({1, 2});
  ASSERT_TRUE(run({request}).ok());
  EXPECT_EQ(request->answers, (std::vector<std::vector<float>>{{1, 2}}));
  EXPECT_EQ(count("fake_runs"), runs);
}

TEST_F(TensorFlowRunnerTest, RunsASignatureWithoutInputs) {
  ASSERT_TRUE(make({}, {{"y", "five:0"}}).ok());
  Outputs outputs;
  ASSERT_TRUE(runner_->run({}, nullptr, &outputs).ok());
  EXPECT_EQ(outputs.tensors[0].shape, Shape{});
  EXPECT_EQ(float_at(outputs.tensors[0], 0), 5);
}

TEST_F(TensorFlowRunnerTest, OutputsThatAliasTheSlabAreRightThoughSlabsAreReused) {
  ASSERT_TRUE(make({{"x", "x:0"}}, {{"y", "same:0"}}).ok());
  for (float i = 0; i < 20; ++i) {
    const auto request = rows({i, -i});
    ASSERT_TRUE(run({request}).ok());
    EXPECT_EQ(request->answers, (std::vector<std::vector<float>>{{i, -i}}));
  }
  EXPECT_EQ(slabs_.allocated(), 1);
}

TEST_F(TensorFlowRunnerTest, ASlabThatAVariableAdoptedIsNotReusedBeforeItIsLetGo) {
  ASSERT_TRUE(make({{"x", "x:0"}}, {{"before", "adopt:0"}}).ok());
  ASSERT_TRUE(run({rows({1, 2})}).ok());
  std::vector<float> last = {1, 2};
  for (float i = 0; i < 20; ++i) {
    const auto request = rows({i, i + 100});
    ASSERT_TRUE(run({request}).ok());
    EXPECT_EQ(request->answers, (std::vector<std::vector<float>>{last}));
    last = {i, i + 100};
  }
  EXPECT_EQ(slabs_.allocated(), 2);  // one adopted, one fed
}

TEST_F(TensorFlowRunnerTest, AFailureIsTheStatusOfEveryRequestAndLetsTheSlabGo) {
  ASSERT_TRUE(make({{"x", "x:0"}}, {{"y", "double:0"}, {"z", "refuse:0"}}).ok());
  for (int i = 0; i < 3; ++i) {
    const auto first = rows({1, 2}), second = rows({3, 4});
    EXPECT_FALSE(run({first, second}).ok());
    for (const auto& request : {first, second}) {
      EXPECT_EQ(request->status.code(), Code::kInvalidArgument);
      EXPECT_EQ(request->status.message(), "the model refuses");
      EXPECT_TRUE(request->answers.empty());
    }
  }
  EXPECT_EQ(slabs_.allocated(), 1);
}

TEST_F(TensorFlowRunnerTest, RefusesASignatureThatTheGraphDoesNotHave) {
  EXPECT_EQ(make({{"a", "none:0"}}, {}).message(), "input \"a\": the graph has no tensor \"none:0\"");
  EXPECT_EQ(make({{"a", "x:0"}}, {{"y", "pair:7"}}).message(), "output \"y\": the graph has no tensor \"pair:7\"");
  EXPECT_EQ(make({{"a", "s:0"}}, {}).message(), "input \"a\": the signature says float, the graph has string");
  EXPECT_EQ(make({{"a", "x:0"}}, {{"y", "pair:1"}}).message(),
            "output \"y\": the signature says float, the graph has int64");
  EXPECT_EQ(make({{"a", "x:0"}, {"b", "x"}}, {}).message(), "input \"b\" is the same tensor as another input");
  EXPECT_EQ(runner_, nullptr);
}

}  // namespace
}  // namespace headrace
