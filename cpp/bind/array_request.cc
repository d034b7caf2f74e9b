// SPDX-License-Identifier: Apache-2.0

#include "bind/array_request.h"

#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "core/futex.h"

namespace headrace {

// Tells whoever waits for the request itself; one for all of them, since it has no state.
class ArrayRequest::Sink final : public ReplySink {
 public:
  static Sink* get() {
    static Sink sink;
    return &sink;
  }

  void deliver(std::span<const RequestPtr> answered) noexcept override {
    for (const RequestPtr& request : answered) static_cast<ArrayRequest&>(*request).tell_done();
    // Only now: a reader that woke up for the first would be woken again for the others.
    const ReplyWatcher* woken = nullptr;
    for (const RequestPtr& request : answered) {
      ReplyWatcher* watcher = static_cast<ArrayRequest&>(*request).watcher();
      if (watcher == nullptr || watcher == woken) continue;
      watcher->wake();
      woken = watcher;
    }
  }
};

ArrayRequest::ArrayRequest(std::vector<TensorView> lent, Callers& callers) : callers_(&callers) {
  sink = Sink::get();
  inputs = std::move(lent);
  inputs_lent = true;
}

ArrayRequest::ArrayRequest(std::vector<TensorView> kept, std::shared_ptr<const void> keeper) : callers_(nullptr) {
  sink = Sink::get();
  inputs = std::move(kept);
  in_place = std::move(keeper);
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

void ArrayRequest::tell_done() {
  if (callers_ != nullptr) callers_->answered();  // before the caller can know
  const std::uint32_t before = done_.fetch_or(kDone);
  if ((before & kWaitedFor) != 0) LinuxFutex::wake_all(done_);
  if ((before & kWatched) != 0) watcher_->answered(watch_token_);
}

bool ArrayRequest::wait_until(std::int64_t deadline_ns) {
  std::uint32_t state = done_.fetch_or(kWaitedFor);
  if ((state & kDone) == 0) LinuxFutex::wait_until(done_, state | kWaitedFor, deadline_ns);
  return was_done();
}

bool ArrayRequest::watch(std::shared_ptr<ReplyWatcher> watcher, std::uint64_t token) {
  if (has_watcher_.exchange(true)) return false;
  watcher_ = std::move(watcher);
  watch_token_ = token;
  if ((done_.fetch_or(kWatched) & kDone) != 0) {
    watcher_->answered(token);
    watcher_->wake();
  }
  return true;
}

std::vector<pybind11::array> ArrayRequest::take_outputs() {
  std::vector<pybind11::array> arrays;
  arrays.reserve(outputs_.size());
  for (const Owned& owned : outputs_) arrays.push_back(view_of(owned.view, owned.data));
  return arrays;
}

}  // namespace headrace
