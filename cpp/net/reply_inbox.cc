// SPDX-License-Identifier: Apache-2.0
//
// Stage 8 of 8: a whole batch of replies handed to a loop with one wake-up.

#include "net/reply_inbox.h"

#include <unistd.h>

#include <utility>

namespace headrace {

void ReplyInbox::deliver(std::span<const RequestPtr> answered) noexcept {
  std::lock_guard lock(mutex_);
  if (closed_) return;
  waiting_.replies.insert(waiting_.replies.end(), answered.begin(), answered.end());
  wake_if_asleep();
}

void ReplyInbox::answer(Answer answer) {
  std::lock_guard lock(mutex_);
  if (closed_) return;
  waiting_.answers.push_back(std::move(answer));
  wake_if_asleep();
}

void ReplyInbox::resume(Resumption resumption) {
  std::lock_guard lock(mutex_);
  if (closed_) return;
  waiting_.resumptions.push_back(std::move(resumption));
  wake_if_asleep();
}

void ReplyInbox::adopt(Descriptor socket) {
  std::lock_guard lock(mutex_);
  if (closed_) return;
  waiting_.sockets.push_back(std::move(socket));
  wake_if_asleep();
}

void ReplyInbox::wake() {
  std::lock_guard lock(mutex_);
  called_ = true;
  wake_if_asleep();
}

void ReplyInbox::wake_if_asleep() {
  if (!std::exchange(asleep_, false)) return;
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(event_.fd(), &one, sizeof one);  // cannot overflow: it is 0 before
}

bool ReplyInbox::try_sleep() {
  std::lock_guard lock(mutex_);
  asleep_ = waiting_.empty() && !std::exchange(called_, false);
  return asleep_;
}

void ReplyInbox::slept() {
  {
    std::lock_guard lock(mutex_);
    if (std::exchange(asleep_, false)) return;  // something else woke it
  }
  std::uint64_t count = 0;
  [[maybe_unused]] const ssize_t cleared = ::read(event_.fd(), &count, sizeof count);
}

void ReplyInbox::take(Taken* taken) {
  std::lock_guard lock(mutex_);
  std::swap(waiting_, *taken);
}

void ReplyInbox::close() {
  Taken left;  // let go of without the mutex: a request may be the last to keep this
  std::lock_guard lock(mutex_);
  closed_ = true;
  std::swap(waiting_, left);
}

}  // namespace headrace
