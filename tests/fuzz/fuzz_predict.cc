// SPDX-License-Identifier: Apache-2.0
//
// Any bytes as a PredictRequest of one of several signatures: decoded, bound, gathered with what else waits, answered.
// What is answered can be sent again as a request, and then gets the same answer: the runner gives back its inputs.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/timer.h"
#include "fake_runner.h"
#include "fuzz_input.h"
#include "lane.h"
#include "messages.h"
#include "model.h"
#include "predict_signatures.h"
#include "wire/predict.h"
#include "wire/proto.h"

namespace headrace {
namespace {

// Takes replies and forgets them.
class Sink final : public ReplySink {
 public:
  void deliver(std::span<const RequestPtr>) noexcept override {}
};

struct Served {
  Served() {
    LaneOptions options;
    options.policy.max_batch_size = 8;
    options.slab_bytes_max = std::size_t{1} << 20;
    for (Signature& signature : predict_signatures())
      lanes.push_back(&model->add_lane(std::move(signature), options, std::make_shared<FakeRunner>(), nullptr));
  }

  const SystemClock clock;
  const std::shared_ptr<Timer> timer = std::make_shared<Timer>(clock);
  const std::shared_ptr<Model> model = std::make_shared<Model>("fuzzed", 1, timer, clock);
  std::vector<Lane*> lanes;
  Sink sink;
};

// Null where it was refused.
PredictRequestPtr submit(Served& served, Lane& lane, std::string_view message) {
  const auto owner = std::make_shared<const std::string>(message);
  PredictRequestPtr request;
  Status status = PredictRequest::decode(std::as_bytes(std::span(*owner)), owner, &request);
  if (status.ok()) status = request->bind(lane.signature(), "fuzzed", 1, lane.options().slab_bytes_max);
  if (!status.ok()) {
    require(!status.message().empty(), "an error says what is wrong");
    return nullptr;
  }
  request->sink = &served.sink;
  request->bytes = owner->size();
  return lane.submit_to_run(request).ok() ? request : nullptr;
}

// The response's outputs as a request's inputs.
std::string request_of(const std::string& response) {
  std::string request;
  FieldReader fields(response);
  for (Field field; fields.next(&field);)
    if (field.number() == 1) request += bytes_field(2, field.bytes);
  require(fields.ok(), "a response is well formed");
  return request;
}

void run(Served& served, Lane& lane) {
  while (lane.was_waiting_rows() != 0) lane.run_next();
  require(served.model->group().waiting_bytes == 0, "no bytes wait where no request does");
}

}  // namespace
}  // namespace headrace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace headrace;
  static Served served;
  FuzzInput input(data, size);
  Lane& lane = *served.lanes[input.byte() % served.lanes.size()];
  const PredictRequestPtr first = submit(served, lane, input.text());
  const PredictRequestPtr second = submit(served, lane, input.rest());
  run(served, lane);
  for (const PredictRequestPtr& request : {first, second}) {
    if (request == nullptr) continue;
    require(request->was_answered(), "what was accepted is answered");
    if (!request->status.ok()) continue;
    const PredictRequestPtr again = submit(served, lane, request_of(request->response()));
    if (again == nullptr) continue;
    run(served, lane);
    require(again->response() == request->response(), "an answer sent again gets itself");
  }
  return 0;
}
