// SPDX-License-Identifier: Apache-2.0

#include "bind/array_request.h"

#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "core/futex.h"

namespace headrace {

// Wakes whoever waits for the request itself; one for all of them, since it has no state.
class ArrayRequest::Sink final : public ReplySink {
 public:
  void deliver(std::span<const RequestPtr> answered) noexcept override {
    for (const RequestPtr& request : answered) {
      std::atomic<std::uint32_t>& done = static_cast<ArrayRequest&>(*request).done_;
      if (done.exchange(kDone) == kWaitedFor) LinuxFutex::wake_all(done);
    }
  }
};

ArrayRequest::ArrayRequest(std::vector<ArrayCopy> copies) : copies_(std::move(copies)) {
  static Sink sink;
  this->sink = &sink;
  inputs.reserve(copies_.size());
  for (const ArrayCopy& copy : copies_) inputs.push_back(copy.view());
}

Status ArrayRequest::write_reply(std::span<const TensorView> outputs) {
  outputs_.reserve(outputs.size());
  for (const TensorView& output : outputs) {
    Owned& owned = outputs_.emplace_back();
    owned.view = output;
    if (output.dtype == DType::kString) {
      const auto count = static_cast<std::size_t>(output.elements());
      owned.characters.assign(output.strings, output.strings + count);
      owned.strings.assign(owned.characters.begin(), owned.characters.end());
      owned.view.strings = owned.strings.data();
      continue;
    }
    const std::size_t room = (output.bytes / kSlabAlignment + 1) * kSlabAlignment;
    owned.data = {static_cast<std::byte*>(std::aligned_alloc(kSlabAlignment, room)), std::free};
    if (owned.data == nullptr) {
      outputs_.clear();
      return ResourceExhausted("no memory for an output of " + std::to_string(output.bytes) + " bytes");
    }
    if (output.bytes != 0) std::memcpy(owned.data.get(), output.data, output.bytes);
    owned.view.data = owned.data.get();
  }
  return {};
}

bool ArrayRequest::wait_until(std::int64_t deadline_ns) {
  std::uint32_t state = kPending;
  if (done_.compare_exchange_strong(state, kWaitedFor) || state == kWaitedFor)
    LinuxFutex::wait_until(done_, kWaitedFor, deadline_ns);
  return was_done();
}

std::vector<pybind11::array> ArrayRequest::take_outputs() {
  std::vector<pybind11::array> arrays;
  arrays.reserve(outputs_.size());
  for (const Owned& owned : outputs_) arrays.push_back(view_of(owned.view, owned.data));
  return arrays;
}

}  // namespace headrace
