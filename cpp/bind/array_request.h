// SPDX-License-Identifier: Apache-2.0
//
// ArrayRequest: a request made of arrays in this process, and its reply as arrays.
//
// Thread safety: as Request; wait_until() and was_done() from any thread.  Nothing here touches Python while it is
//   queued, run or answered.
// Ownership: its inputs are copies, its outputs its own; arrays made of them may outlive it.

#pragma once

#include <atomic>
#include <boost/smart_ptr/intrusive_ptr.hpp>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bind/ndarray.h"
#include "core/request.h"

namespace headrace {

class ArrayRequest final : public Request {
 public:
  explicit ArrayRequest(std::vector<ArrayCopy> inputs);

  Status write_reply(std::span<const TensorView> outputs) override;

  // Whether it is answered; sleeps until then, until `deadline_ns`, or until a signal.
  bool wait_until(std::int64_t deadline_ns);
  bool was_done() const { return done_.load() == kDone; }

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

  static constexpr std::uint32_t kPending = 0;
  static constexpr std::uint32_t kWaitedFor = 1;
  static constexpr std::uint32_t kDone = 2;

  std::vector<ArrayCopy> copies_;
  std::vector<Owned> outputs_;
  std::atomic<std::uint32_t> done_{kPending};
};

using ArrayRequestPtr = boost::intrusive_ptr<ArrayRequest>;

}  // namespace headrace
