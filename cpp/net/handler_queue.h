// SPDX-License-Identifier: Apache-2.0
//
// HandlerQueue: calls of every method but Predict and Health, on their way to threads that answer them (Python's).
//
// Thread safety: every function from any thread.
// Ownership: a call belongs to the queue until next(), then to whoever took it; dropping it answers it with INTERNAL.
// Invariant: every call is answered once: by who took it, or by close().

#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "core/status.h"
#include "net/message.h"

namespace headrace {

// One message of a call.  A call whose replies come message by message (reflection) is several of these, in order.
class HandlerCall {
 public:
  // Takes the answer, once, on whatever thread; after the client has gone it does nothing.
  using Answer = std::function<void(const Status& status, std::string_view response)>;

  HandlerCall(std::string path, MessagePtr message, Answer answer);
  HandlerCall(const HandlerCall&) = delete;
  HandlerCall& operator=(const HandlerCall&) = delete;
  ~HandlerCall();

  const std::string& path() const { return path_; }
  std::string_view message() const { return {reinterpret_cast<const char*>(message_->data()), message_->size()}; }
  void answer(const Status& status, std::string_view response);

 private:
  const std::string path_;
  const MessagePtr message_;
  Answer answer_;  // empty once it was called
};

class HandlerQueue {
 public:
  explicit HandlerQueue(std::size_t waiting_max) : waiting_max_(waiting_max) {}
  ~HandlerQueue() { close(); }

  // RESOURCE_EXHAUSTED, and the call is the caller's to answer, where `waiting_max` calls wait; UNAVAILABLE once
  // closed.
  Status push(std::unique_ptr<HandlerCall>& call);

  // Waits for a call; nullptr once it is closed.
  std::unique_ptr<HandlerCall> next();

  // Answers what waits with UNAVAILABLE, and lets every next() return.
  void close();

 private:
  const std::size_t waiting_max_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<HandlerCall>> waiting_;  // guarded by mutex_
  bool closed_ = false;                               // guarded by mutex_
};

}  // namespace headrace
