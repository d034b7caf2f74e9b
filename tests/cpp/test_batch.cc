// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/batch.h"
#include "fake_request.h"

// Memory that is out is a null pointer for a sanitizer too.
extern "C" __attribute__((visibility("default"))) const char* __asan_default_options() {
  return "allocator_may_return_null=1";
}
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_options() {
  return "allocator_may_return_null=1";
}

namespace headrace {
namespace {

constexpr std::int64_t kNow = 1'000;

class BatchTest : public testing::Test {
 protected:
  // A request of the rows of `add`; its run is claimed, as the scheduler does.
  FakeRequestPtr request(FakeSink* sink = nullptr) {
    FakeRequestPtr made(new FakeRequest(sink == nullptr ? &sink_ : sink));
    EXPECT_TRUE(made->claim_run());
    return made;
  }

  FakeRequestPtr floats(Shape shape, float first = 0, FakeSink* sink = nullptr) {
    FakeRequestPtr made = request(sink);
    made->add_floats(std::move(shape), first);
    made->rows = made->inputs[0].shape.empty() ? 1 : made->inputs[0].shape[0];
    return made;
  }

  static Batch batch_of(const std::vector<FakeRequestPtr>& requests) {
    return Batch({requests.begin(), requests.end()}, BatchReason::kWindow, kNow);
  }

  static std::string_view bytes_of(const TensorView& view) {
    return {reinterpret_cast<const char*>(view.data), view.bytes};
  }

  // What an identity would give.
  static Outputs inputs_as_outputs(const Batch& batch) {
    return {.tensors = {batch.inputs().begin(), batch.inputs().end()}, .owner = batch.slab()};
  }

  FakeSink sink_;
  SlabPool slabs_{nullptr};
};

// ---- Gather ---------------------------------------------------------------------------------------------------------

// As a lane does it: finishes, then delivers.
Batch::Answered finish(Batch& batch, const Status& status, const Outputs& outputs, std::int64_t now_ns) {
  Batch::Answered answered = batch.finish(status, outputs, now_ns);
  deliver(answered.requests);
  return answered;
}

TEST_F(BatchTest, GivesEachRequestItsSlotInOrderWithoutGaps) {
  const FakeRequestPtr a = floats({2, 3}), b = floats({1, 3}), c = floats({4, 3});
  const Batch batch = batch_of({a, b, c});
  EXPECT_EQ(batch.state(), Batch::State::kFormed);
  EXPECT_EQ(batch.rows(), 7);
  EXPECT_EQ(batch.formed_ns(), kNow);
  ASSERT_EQ(batch.slots().size(), 3u);
  const std::int64_t first_rows[] = {0, 2, 3};
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(batch.slots()[i].first_row, first_rows[i]);
  EXPECT_EQ(batch.slots()[2].rows, 4);
  EXPECT_EQ(batch.slots()[2].request, c);
}

TEST_F(BatchTest, CopiesEveryByteOfEveryInputIntoTheAlignedSlab) {
  std::vector<FakeRequestPtr> requests;
  std::string floats, longs, bools;
  for (const std::int64_t rows : {3, 1, 5}) {
    FakeRequestPtr made = request();
    std::string bytes[3];
    for (std::int64_t i = 0; i < rows * 7 * 4; ++i) bytes[0] += static_cast<char>(floats.size() + bytes[0].size());
    for (std::int64_t i = 0; i < rows * 8; ++i) bytes[1] += static_cast<char>(3 * longs.size() + bytes[1].size());
    for (std::int64_t i = 0; i < rows * 6; ++i) bytes[2] += static_cast<char>((bools.size() + bytes[2].size()) % 2);
    floats += bytes[0], longs += bytes[1], bools += bytes[2];
    made->add(DType::kFloat, {rows, 7}, bytes[0]).add(DType::kInt64, {rows}, bytes[1]);
    made->add(DType::kBool, {rows, 2, 3}, bytes[2]);
    made->rows = rows;
    requests.push_back(std::move(made));
  }
  Batch batch = batch_of(requests);
  ASSERT_TRUE(batch.gather(slabs_).ok());
  ASSERT_EQ(batch.inputs().size(), 3u);
  EXPECT_EQ(batch.inputs()[0].shape, (Shape{9, 7}));
  EXPECT_EQ(batch.inputs()[1].shape, (Shape{9}));
  EXPECT_EQ(batch.inputs()[2].shape, (Shape{9, 2, 3}));
  EXPECT_EQ(batch.inputs()[1].dtype, DType::kInt64);
  EXPECT_EQ(bytes_of(batch.inputs()[0]), floats);
  EXPECT_EQ(bytes_of(batch.inputs()[1]), longs);
  EXPECT_EQ(bytes_of(batch.inputs()[2]), bools);
  for (const TensorView& input : batch.inputs()) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(input.data) % kSlabAlignment, 0u);
    EXPECT_GE(input.data, batch.slab()->data());
    EXPECT_LE(input.data + input.bytes, batch.slab()->data() + batch.slab()->capacity());
  }
}

TEST_F(BatchTest, CountsTheAlignmentOfItsInputsIntoTheSlab) {
  const FakeRequestPtr a = floats({1, 1});
  a->add_floats({1, 1'023});  // the bytes of both are a page
  Batch batch = batch_of({a});
  ASSERT_TRUE(batch.gather(slabs_).ok());
  EXPECT_LE(batch.inputs()[1].data + batch.inputs()[1].bytes, batch.slab()->data() + batch.slab()->capacity());
}

TEST_F(BatchTest, GathersStringsAsTheirViews) {
  const FakeRequestPtr a = request(), b = request();
  a->add_strings({2, 2}, {"a", "", "ccc", std::string("\0d", 2)}).add_floats({2, 1}, 1);
  b->add_strings({1, 2}, {"long enough to live on the heap, not in the string", "f"}).add_floats({1, 1}, 3);
  a->rows = 2;
  Batch batch = batch_of({a, b});
  ASSERT_TRUE(batch.gather(slabs_).ok());
  const TensorView& strings = batch.inputs()[0];
  EXPECT_EQ(strings.shape, (Shape{3, 2}));
  EXPECT_EQ(strings.data, nullptr);
  const std::vector<std::string_view> gathered(strings.strings, strings.strings + strings.elements());
  EXPECT_EQ(gathered, (std::vector<std::string_view>{"a", "", "ccc", std::string_view("\0d", 2),
                                                     "long enough to live on the heap, not in the string", "f"}));
  EXPECT_EQ(gathered[4].data(), b->inputs[0].strings[0].data());
  EXPECT_EQ(batch.inputs()[1].shape, (Shape{3, 1}));
}

TEST_F(BatchTest, KeepsTwoInputsOfStringsApart) {
  const FakeRequestPtr a = request(), b = request();
  a->add_strings({1}, {"a0"}).add_strings({1, 2}, {"a1", "a2"});
  b->add_strings({1}, {"b0"}).add_strings({1, 2}, {"b1", "b2"});
  Batch batch = batch_of({a, b});
  ASSERT_TRUE(batch.gather(slabs_).ok());
  EXPECT_EQ(batch.inputs()[0].strings[1], "b0");
  EXPECT_EQ(batch.inputs()[1].strings[0], "a1");
  EXPECT_EQ(batch.inputs()[1].strings[3], "b2");
}

TEST_F(BatchTest, GathersRowsWithoutElements) {
  const FakeRequestPtr a = request(), b = request();
  a->add_floats({2, 0, 3}).add_floats({2}, 1).add_strings({2, 0}, {});
  b->add_floats({1, 0, 3}).add_floats({1}, 3).add_strings({1, 0}, {});
  a->rows = 2;
  Batch batch = batch_of({a, b});
  ASSERT_TRUE(batch.gather(slabs_).ok());
  EXPECT_EQ(batch.inputs()[0].shape, (Shape{3, 0, 3}));
  EXPECT_EQ(batch.inputs()[0].bytes, 0u);
  EXPECT_NE(batch.inputs()[0].data, nullptr);
  EXPECT_EQ(batch.inputs()[1].bytes, 3 * sizeof(float));
  EXPECT_EQ(batch.inputs()[2].shape, (Shape{3, 0}));
  batch.start(kNow);
  EXPECT_EQ(finish(batch, {}, inputs_as_outputs(batch), kNow).ok, 2);
  EXPECT_EQ(b->reply.at(0).shape, (Shape{1, 0, 3}));
  EXPECT_EQ(b->reply_floats(1), std::vector<float>{3});
}

TEST_F(BatchTest, RunsTheRowsOfOneRequestInPlaceWhereItsMemoryIsKept) {
  FakeRequestPtr alone = floats({2, 3});
  alone->in_place = std::make_shared<int>();
  Batch batch = batch_of({alone});
  ASSERT_TRUE(batch.gather(slabs_).ok());
  EXPECT_EQ(batch.inputs()[0].data, alone->inputs[0].data);
  EXPECT_EQ(batch.memory(), alone->in_place);
  EXPECT_EQ(batch.slab(), nullptr);
  EXPECT_EQ(slabs_.allocated(), 0);
}

TEST_F(BatchTest, CopiesThoseRowsOnceWhereOthersRunWithThem) {
  const std::vector<FakeRequestPtr> requests = {floats({2, 3}), floats({1, 3}, 6)};
  for (const FakeRequestPtr& request : requests) request->in_place = std::make_shared<int>();
  Batch batch = batch_of(requests);
  ASSERT_TRUE(batch.gather(slabs_).ok());
  EXPECT_EQ(batch.memory(), batch.slab());
  EXPECT_EQ(slabs_.allocated(), 1);
  const float* rows = reinterpret_cast<const float*>(batch.inputs()[0].data);
  for (int i = 0; i < 9; ++i) EXPECT_EQ(rows[i], static_cast<float>(i));
}

TEST_F(BatchTest, GivesLentInputsBackOnceTheyAreCopied) {
  const FakeRequestPtr lent = floats({1, 3});
  lent->inputs_lent = true;
  Batch batch = batch_of({lent, floats({1, 3})});
  EXPECT_FALSE(lent->inputs_were_free());
  ASSERT_TRUE(batch.gather(slabs_).ok());
  EXPECT_TRUE(lent->inputs_were_free());
}

TEST_F(BatchTest, PassesOverAnInputThatItsRequestsLeftOut) {
  std::vector<FakeRequestPtr> requests = {floats({2, 3}), floats({1, 3}, 6)};
  for (const FakeRequestPtr& request : requests) {
    request->inputs.emplace_back();
    request->add_strings({request->rows}, std::vector<std::string>(static_cast<std::size_t>(request->rows), "a"));
  }
  Batch batch = batch_of(requests);
  ASSERT_TRUE(batch.gather(slabs_).ok());
  EXPECT_EQ(batch.inputs()[0].shape, (Shape{3, 3}));
  EXPECT_TRUE(batch.inputs()[1].is_absent());
  EXPECT_EQ(batch.inputs()[2].shape, (Shape{3}));
}

TEST_F(BatchTest, GathersALoneScalarAndARequestWithoutInputs) {
  const FakeRequestPtr scalar = floats({}, 5), nothing = request();
  Batch batch = batch_of({scalar});
  ASSERT_TRUE(batch.gather(slabs_).ok());
  EXPECT_EQ(batch.inputs()[0].shape, Shape{});
  EXPECT_EQ(batch.inputs()[0].bytes, sizeof(float));
  batch.start(kNow);
  EXPECT_EQ(finish(batch, {}, inputs_as_outputs(batch), kNow).ok, 1);
  EXPECT_EQ(scalar->reply_floats(), std::vector<float>{5});
  Batch empty = batch_of({nothing});
  ASSERT_TRUE(empty.gather(slabs_).ok());
  EXPECT_TRUE(empty.inputs().empty());
}

TEST_F(BatchTest, SaysWhenThereIsNoMemoryAndWhichOptionHelps) {
  const FakeRequestPtr a = floats({1, 1});
  a->inputs[0].shape = {1, std::int64_t{1} << 58};
  Batch batch = batch_of({a});
  const Status status = batch.gather(slabs_);
  EXPECT_EQ(status.code(), Code::kResourceExhausted);
  EXPECT_EQ(status.message(), "no memory for a batch of 1152921504606846976 bytes; lower --batch_size");
  EXPECT_EQ(finish(batch, status, {}, kNow).failed, 1);
  EXPECT_EQ(a->status.code(), Code::kResourceExhausted);
}

// ---- Finish ---------------------------------------------------------------------------------------------------------

TEST_F(BatchTest, GivesEachRequestItsRowsOfEveryOutput) {
  const FakeRequestPtr a = floats({2, 2}, 0), b = floats({1, 2}, 10), c = floats({3, 2}, 20);
  Batch batch = batch_of({a, b, c});
  ASSERT_TRUE(batch.gather(slabs_).ok());
  batch.start(kNow + 1);
  EXPECT_EQ(batch.state(), Batch::State::kRunning);
  const std::string_view names[] = {"r0", "r1", "r2", "r3", "r4", "r5"};
  Outputs outputs = inputs_as_outputs(batch);
  outputs.tensors.push_back({.dtype = DType::kString, .shape = {6}, .bytes = 12, .strings = names});
  const Batch::Answered answered = finish(batch, {}, outputs, kNow + 2);
  EXPECT_EQ(answered.ok, 3);
  EXPECT_EQ(answered.failed, 0);
  EXPECT_EQ(batch.state(), Batch::State::kDone);
  EXPECT_EQ(batch.started_ns(), kNow + 1);
  EXPECT_EQ(batch.done_ns(), kNow + 2);
  EXPECT_EQ(a->reply_floats(), (std::vector<float>{0, 1, 2, 3}));
  EXPECT_EQ(b->reply_floats(), (std::vector<float>{10, 11}));
  EXPECT_EQ(c->reply_floats(), (std::vector<float>{20, 21, 22, 23, 24, 25}));
  EXPECT_EQ(b->reply.at(0).shape, (Shape{1, 2}));
  EXPECT_EQ(a->reply.at(1).strings, (std::vector<std::string>{"r0", "r1"}));
  EXPECT_EQ(b->reply.at(1).strings, (std::vector<std::string>{"r2"}));
  EXPECT_EQ(c->reply.at(1).strings, (std::vector<std::string>{"r3", "r4", "r5"}));
  for (const FakeRequestPtr& request : {a, b, c}) {
    EXPECT_TRUE(request->was_answered());
    EXPECT_EQ(request->writes, 1);
    EXPECT_EQ(request->replies, 1);
  }
}

TEST_F(BatchTest, TellsEachRequestTheNamesOfOutputsThatTheSignatureLeavesOpen) {
  const std::vector<FakeRequestPtr> requests = {floats({2, 3}), floats({1, 3}, 6)};
  Batch batch = batch_of(requests);
  ASSERT_TRUE(batch.gather(slabs_).ok());
  batch.start(kNow);
  Outputs outputs = inputs_as_outputs(batch);
  outputs.names = std::make_shared<const std::vector<std::string>>(1, "y");
  batch.finish({}, outputs, kNow);
  for (const FakeRequestPtr& request : requests) EXPECT_EQ(request->output_names, outputs.names);
}

TEST_F(BatchTest, GivesTheRunsErrorToEveryRequest) {
  const FakeRequestPtr a = floats({1, 2}), b = floats({1, 2});
  Batch batch = batch_of({a, b});
  ASSERT_TRUE(batch.gather(slabs_).ok());
  batch.start(kNow);
  const Batch::Answered answered = finish(batch, InvalidArgument("the model's words"), {}, kNow);
  EXPECT_EQ(answered.ok, 0);
  EXPECT_EQ(answered.failed, 2);
  for (const FakeRequestPtr& request : {a, b}) {
    EXPECT_EQ(request->status.code(), Code::kInvalidArgument);
    EXPECT_EQ(request->status.message(), "the model's words");
    EXPECT_EQ(request->writes, 0);
    EXPECT_EQ(request->replies, 1);
  }
}

TEST_F(BatchTest, RefusesAnOutputThatCannotBeDividedByRows) {
  for (const bool scalar : {true, false}) {
    const FakeRequestPtr a = floats({1, 2}), b = floats({2, 2});
    Batch batch = batch_of({a, b});
    ASSERT_TRUE(batch.gather(slabs_).ok());
    batch.start(kNow);
    Outputs outputs = inputs_as_outputs(batch);
    outputs.tensors.push_back({.dtype = DType::kFloat,
                               .shape = scalar ? Shape{} : Shape{4},
                               .data = batch.slab()->data(),
                               .bytes = scalar ? std::size_t{4} : 16});
    EXPECT_EQ(finish(batch, {}, outputs, kNow).failed, 2);
    EXPECT_EQ(a->status.code(), Code::kFailedPrecondition);
    EXPECT_EQ(a->status.message(), scalar ? "Batched output tensor has 0 dimensions"
                                          : "Batched output tensor's 0th dimension does not equal the sum of the 0th "
                                            "dimension sizes of the input tensors: got 4 rows for 3");
    EXPECT_EQ(b->status.message(), a->status.message());
    EXPECT_EQ(a->writes, 0);
  }
}

TEST_F(BatchTest, GivesARequestThatRanByItselfAllThereIs) {
  const FakeRequestPtr only = floats({2, 2});
  Batch batch = batch_of({only});
  ASSERT_TRUE(batch.gather(slabs_).ok());
  batch.start(kNow);
  Outputs outputs = inputs_as_outputs(batch);
  outputs.tensors[0].shape = {4};
  EXPECT_EQ(finish(batch, {}, outputs, kNow).ok, 1);
  EXPECT_EQ(only->reply.at(0).shape, (Shape{4}));
}

TEST_F(BatchTest, TakesAFailureToWriteOneReplyForThatRequestsAlone) {
  const FakeRequestPtr a = floats({1, 2}), b = floats({1, 2}), c = floats({1, 2});
  b->write_status = Internal("cannot be written");
  Batch batch = batch_of({a, b, c});
  ASSERT_TRUE(batch.gather(slabs_).ok());
  batch.start(kNow);
  const Batch::Answered answered = finish(batch, {}, inputs_as_outputs(batch), kNow);
  EXPECT_EQ(answered.ok, 2);
  EXPECT_EQ(answered.failed, 1);
  EXPECT_EQ(b->status.message(), "cannot be written");
  EXPECT_TRUE(a->status.ok());
  EXPECT_TRUE(c->status.ok());
}

TEST_F(BatchTest, DropsTheResultOfWhatWasAnsweredMeanwhile) {
  const FakeRequestPtr a = floats({1, 2}, 0), b = floats({1, 2}, 10);
  Batch batch = batch_of({a, b});
  ASSERT_TRUE(batch.gather(slabs_).ok());
  batch.start(kNow);
  Request::State from;
  ASSERT_TRUE(a->claim_answer(&from));
  a->status = Cancelled("meanwhile");
  const Batch::Answered answered = finish(batch, {}, inputs_as_outputs(batch), kNow);
  EXPECT_EQ(answered.ok, 1);
  EXPECT_EQ(answered.failed, 0);
  EXPECT_EQ(a->writes, 0);
  EXPECT_EQ(a->replies, 0);
  EXPECT_EQ(a->status.message(), "meanwhile");
  EXPECT_EQ(b->reply_floats(), (std::vector<float>{10, 11}));
}

TEST_F(BatchTest, CallsEachSinkOnceForAllItsReplies) {
  FakeSink sinks[3];
  std::vector<FakeRequestPtr> requests;
  for (int i = 0; i < 9; ++i) requests.push_back(floats({1, 1}, 0, &sinks[(i * i) % 3]));  // 0 1 1 0 1 1 ...
  Batch batch = batch_of(requests);
  ASSERT_TRUE(batch.gather(slabs_).ok());
  batch.start(kNow);
  EXPECT_EQ(finish(batch, {}, inputs_as_outputs(batch), kNow).ok, 9);
  EXPECT_EQ(sinks[0].call_sizes(), std::vector<std::size_t>{3});
  EXPECT_EQ(sinks[1].call_sizes(), std::vector<std::size_t>{6});
  EXPECT_TRUE(sinks[2].call_sizes().empty());
  for (const FakeRequestPtr& request : requests) EXPECT_EQ(request->replies, 1);
}

TEST_F(BatchTest, CallsNobodyWhereAllWereAnsweredMeanwhile) {
  const FakeRequestPtr a = floats({1, 1});
  Batch batch = batch_of({a});
  ASSERT_TRUE(batch.gather(slabs_).ok());
  Request::State from;
  ASSERT_TRUE(a->claim_answer(&from));
  batch.start(kNow);
  EXPECT_EQ(finish(batch, {}, inputs_as_outputs(batch), kNow).ok, 0);
  EXPECT_TRUE(sink_.call_sizes().empty());
}

// ---- The slab -------------------------------------------------------------------------------------------------------

TEST_F(BatchTest, GivesItsSlabBackWithTheLastReference) {
  const auto run = [&](SlabPtr* adopted) {
    Batch batch = batch_of({floats({1, 16})});
    EXPECT_TRUE(batch.gather(slabs_).ok());
    batch.start(kNow);
    if (adopted != nullptr) *adopted = batch.slab();
    finish(batch, {}, inputs_as_outputs(batch), kNow);
    return batch.slab()->data();
  };
  const std::byte* memory = run(nullptr);
  EXPECT_EQ(run(nullptr), memory);
  EXPECT_EQ(slabs_.allocated(), 1);
  SlabPtr adopted;
  EXPECT_EQ(run(&adopted), memory);
  EXPECT_NE(run(nullptr), memory);
  EXPECT_EQ(slabs_.allocated(), 2);
}

TEST_F(BatchTest, NamesEveryReason) {
  EXPECT_EQ(batch_reason_name(BatchReason::kFull), "full");
  EXPECT_EQ(batch_reason_name(BatchReason::kExecutorFree), "executor_free");
  EXPECT_EQ(batch_reason_name(BatchReason::kWindow), "window");
  EXPECT_EQ(batch_reason_name(BatchReason::kShutdown), "shutdown");
  EXPECT_EQ(batch_reason_name(BatchReason::kAlone), "alone");
  EXPECT_EQ(static_cast<int>(BatchReason::kAlone) + 1, kBatchReasons);
}

}  // namespace
}  // namespace headrace
