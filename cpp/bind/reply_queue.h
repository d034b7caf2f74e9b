// SPDX-License-Identifier: Apache-2.0
//
// ReplyQueue: tells one reader, an event loop or a thread, which replies have been answered.
//
// Thread safety: watch(), put() and take() with the GIL held; answers arrive from any thread and need no GIL: they turn
//   an eventfd readable, once for all answers that nobody has taken yet.
// Ownership: keeps each token until it was taken; requests that are watched keep what they report to, not the queue.

#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "bind/array_request.h"
#include "bind/fork.h"

namespace headrace {

class ReplyQueue {
 public:
  ReplyQueue();

  int fileno() const;
  void watch(ArrayRequest& request, pybind11::object token);
  void put(pybind11::object token);
  pybind11::list take();

 private:
  class Answered;

  MadeHere made_;
  std::shared_ptr<Answered> answered_;
  std::unordered_map<std::uint64_t, pybind11::object> tokens_;
  std::uint64_t next_token_ = 0;
};

}  // namespace headrace
