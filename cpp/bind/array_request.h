// SPDX-License-Identifier: Apache-2.0
//
// ArrayRequest: a request made of arrays in this process, and its reply as arrays.
//
// Thread safety: as Request; wait_until(), watch() and was_done() from any thread.  Nothing here touches Python while
// it
//   is queued, run or answered.
// Ownership: its outputs are its own; arrays made of them may outlive it.  Its inputs are lent by a caller that waits,
// or
//   kept.

#pragma once

#include <atomic>
#include <boost/smart_ptr/intrusive_ptr.hpp>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bind/callers.h"
#include "bind/ndarray.h"
#include "core/request.h"

namespace headrace {

// Where a watched request says that it is answered.
//
// Thread safety: any thread.
class ReplyWatcher {
 public:
  virtual ~ReplyWatcher() = default;
  virtual void answered(std::uint64_t token) noexcept = 0;
  // Wakes the reader, unless it has taken all that was answered; once for a whole batch.
  virtual void wake() noexcept = 0;
};

class ArrayRequest final : public Request {
 public:
  // Inputs that are lent by a caller until wait_inputs_free() returns.
  ArrayRequest(std::vector<TensorView> lent, Callers& callers);
  // Inputs in memory that `keeper` keeps, every one that has numbers 64-byte aligned.
  ArrayRequest(std::vector<TensorView> kept, std::shared_ptr<const void> keeper);

  Status write_reply(std::span<const TensorView> outputs) override;

  // Whether it is answered; sleeps until then, until `deadline_ns`, or until a signal.
  bool wait_until(std::int64_t deadline_ns);
  bool was_done() const { return (done_.load() & kDone) != 0; }

  // Tells `watcher` once, when it is answered, or at once if it is.  False if somebody watches already.
  bool watch(std::shared_ptr<ReplyWatcher> watcher, std::uint64_t token);

  // REQUIRES: was_done(), status OK.  One array per output, over the reply's memory, which the arrays keep: those of
  // another call share it.
  std::vector<pybind11::array> take_outputs();

 private:
  class Sink;

  // A tensor in memory of its own.
  struct Owned {
    TensorView view;
    std::shared_ptr<std::byte> data;
    std::vector<std::string> characters;
    std::vector<std::string_view> strings;
  };

  // What has happened, and who is to be told.
  static constexpr std::uint32_t kDone = 1;
  static constexpr std::uint32_t kWaitedFor = 2;
  static constexpr std::uint32_t kWatched = 4;

  void tell_done();
  ReplyWatcher* watcher() const { return (done_.load() & kWatched) != 0 ? watcher_.get() : nullptr; }

  Callers* const callers_;  // null where nobody waits inside a call
  std::vector<Owned> outputs_;
  std::atomic<std::uint32_t> done_{0};
  std::atomic<bool> has_watcher_{false};
  std::shared_ptr<ReplyWatcher> watcher_;  // written before kWatched is set, read by who sees kWatched and kDone second
  std::uint64_t watch_token_ = 0;
};

using ArrayRequestPtr = boost::intrusive_ptr<ArrayRequest>;

}  // namespace headrace
