// SPDX-License-Identifier: Apache-2.0
//
// Stage 8 of 8 for requests of this process: hand back a whole batch of answers with one wake-up.

#include "bind/reply_queue.h"

#include <mutex>
#include <utility>
#include <vector>

#include "bind/event_fd.h"
#include "bind/status_error.h"

namespace py = pybind11;

namespace headrace {

class ReplyQueue::Answered final : public ReplyWatcher {
 public:
  int fileno() const { return fd_.fileno(); }

  void answered(std::uint64_t token) noexcept override {
    std::lock_guard lock(mutex_);
    tokens_.push_back(token);
  }

  void wake() noexcept override {
    std::lock_guard lock(mutex_);
    if (!tokens_.empty()) fd_.signal();
  }

  std::vector<std::uint64_t> take() {
    std::vector<std::uint64_t> taken;
    std::lock_guard lock(mutex_);
    taken.swap(tokens_);
    fd_.clear();
    return taken;
  }

 private:
  std::mutex mutex_;
  EventFd fd_;                         // guarded by mutex_
  std::vector<std::uint64_t> tokens_;  // guarded by mutex_
};

ReplyQueue::ReplyQueue() : answered_(std::make_shared<Answered>()) {}

int ReplyQueue::fileno() const { return answered_->fileno(); }

void ReplyQueue::watch(ArrayRequest& request, py::object token) {
  made_.check("queue");
  const std::uint64_t number = next_token_++;
  tokens_[number] = std::move(token);
  if (request.watch(answered_, number)) return;
  tokens_.erase(number);
  throw_status(FailedPrecondition("another queue watches the reply already"));
}

void ReplyQueue::put(py::object token) {
  made_.check("queue");
  const std::uint64_t number = next_token_++;
  tokens_[number] = std::move(token);
  answered_->answered(number);
  answered_->wake();
}

py::list ReplyQueue::take() {
  made_.check("queue");
  py::list taken;
  for (std::uint64_t number : answered_->take()) taken.append(std::move(tokens_.extract(number).mapped()));
  return taken;
}

}  // namespace headrace
