// SPDX-License-Identifier: Apache-2.0
//
// PredictQueue: PredictRequest messages in, PredictResponse messages out, for a transport that is written in Python.
//
// Thread safety: submit(), cancel() and take() with the GIL held; answers arrive from any thread and need no GIL: they
//   turn an eventfd readable, once for all answers that nobody has taken yet.
// Ownership: keeps the bytes object of a message until its request is gone (kept_object.h).
// Invariant: until close(), every submit() that does not throw is answered by exactly one entry of take().

#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "bind/fork.h"
#include "core/request.h"
#include "core/status.h"
#include "router.h"
#include "wire/predict.h"

namespace headrace {

class PredictQueue {
 public:
  explicit PredictQueue(std::shared_ptr<const Router> router);
  PredictQueue(const PredictQueue&) = delete;
  PredictQueue& operator=(const PredictQueue&) = delete;
  ~PredictQueue();

  int fileno() const;
  void submit(std::uint64_t token, const pybind11::bytes& message, std::optional<double> timeout);
  void cancel(std::uint64_t token);
  pybind11::list take();
  std::size_t pending() const { return pending_.size(); }
  void close();

 private:
  class Answers;

  struct Pending {
    PredictRequestPtr request;  // null where the message was refused
    Lane* lane = nullptr;
    std::shared_ptr<Model> model;
  };

  Status queue(std::uint64_t token, const pybind11::bytes& message, std::optional<double> timeout);
  Status decode(std::string_view message, std::shared_ptr<const void> owner, PredictRequestPtr* request,
                Router::Route* route) const;

  MadeHere made_;
  bool closed_ = false;
  std::shared_ptr<const Router> router_;
  std::unordered_map<std::uint64_t, Pending> pending_;
  std::shared_ptr<Answers> answers_;  // kept by every request under way, which may outlive the queue
};

}  // namespace headrace
