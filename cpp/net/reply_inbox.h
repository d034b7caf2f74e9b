// SPDX-License-Identifier: Apache-2.0
//
// ReplyInbox: what other threads have for a loop: replies of batches, answers of handlers, coded messages, connections.
//
// Thread safety: deliver(), answer(), resume(), adopt(), wake() and close() from any thread; the rest by the loop.
// Ownership: kept by every request under way, which may outlive the loop.
// Progress: a mutex is held for a moment; a system call is made only if the loop sleeps, and once until it wakes.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "core/request.h"
#include "core/status.h"
#include "net/descriptor.h"

namespace headrace {

struct Call;

class ReplyInbox final : public ReplySink {
 public:
  // The answer to a call that is no Predict, or one message of it.
  struct Answer {
    std::uint64_t token = 0;
    Status status;
    std::string response;
  };

  // What the loop does with a call once its message was inflated or deflated, unless its client has gone.
  struct Resumption {
    std::uint64_t token = 0;
    std::function<void(Call&)> then;
  };

  struct Taken {
    bool empty() const { return replies.empty() && answers.empty() && resumptions.empty() && sockets.empty(); }

    std::vector<RequestPtr> replies;
    std::vector<Answer> answers;
    std::vector<Resumption> resumptions;
    std::vector<Descriptor> sockets;
  };

  explicit ReplyInbox(Descriptor event) : event_(std::move(event)) {}  // an eventfd that does not block

  void deliver(std::span<const RequestPtr> answered) noexcept override;
  void answer(Answer answer);
  void resume(Resumption resumption);
  void adopt(Descriptor socket);
  void wake();

  int fileno() const { return event_.fd(); }
  // Whether there is nothing to take, so that the loop may sleep; from then on it is woken.
  bool try_sleep();
  void slept();
  // Swaps what there is with `taken`, which is empty.
  void take(Taken* taken);
  // Nobody takes anything any more.
  void close();

 private:
  void wake_if_asleep();

  const Descriptor event_;
  std::mutex mutex_;
  Taken waiting_;        // guarded by mutex_, as all that follows
  bool asleep_ = false;  // cleared by who wakes it
  bool called_ = false;  // by wake(): look around, though there may be nothing to take
  bool closed_ = false;
};

}  // namespace headrace
