// SPDX-License-Identifier: Apache-2.0

#include "net/handler_queue.h"

#include <utility>

namespace headrace {

HandlerCall::HandlerCall(std::string path, MessagePtr message, Answer answer)
    : path_(std::move(path)), message_(std::move(message)), answer_(std::move(answer)) {}

HandlerCall::~HandlerCall() { answer(Internal(path_ + ": the handler gave no answer"), {}); }

void HandlerCall::answer(const Status& status, std::string_view response) {
  const Answer once = std::exchange(answer_, nullptr);
  if (once) once(status, response);
}

Status HandlerQueue::push(std::unique_ptr<HandlerCall>& call) {
  {
    std::lock_guard lock(mutex_);
    if (closed_) return Unavailable("the server is stopping");
    if (waiting_.size() >= waiting_max_)
      return ResourceExhausted(std::to_string(waiting_max_) + " control calls are waiting already");
    waiting_.push_back(std::move(call));
  }
  changed_.notify_one();
  return {};
}

std::unique_ptr<HandlerCall> HandlerQueue::next() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return closed_ || !waiting_.empty(); });
  if (closed_) return nullptr;
  std::unique_ptr<HandlerCall> call = std::move(waiting_.front());
  waiting_.pop_front();
  return call;
}

void HandlerQueue::close() {
  std::deque<std::unique_ptr<HandlerCall>> left;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    left.swap(waiting_);
  }
  changed_.notify_all();
  for (const auto& call : left) call->answer(Unavailable("the server is stopping"), {});
}

}  // namespace headrace
