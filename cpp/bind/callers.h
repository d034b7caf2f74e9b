// SPDX-License-Identifier: Apache-2.0
//
// Callers: the threads inside a call to one model that waits for its reply, and when an executor is woken for them.
//
// A thread whose reply has come needs the GIL to leave its call, and is likely to come back at once.  While there is
// any on its way out, what others queue is not announced: the executor would take it two or three requests at a time.
// The last one out announces it, or the lane's timer, if that takes long.
//
// Thread safety: the GIL guards it, but for answered().
// Ownership: outlives its callers and their requests' answers.
// Invariant: inside_ >= unanswered_; both count a caller from before its submit.

#pragma once

#include <atomic>

#include "lane.h"

namespace headrace {

class Callers {
 public:
  // A thread inside a call, from before its request is queued until it leaves with the answer.
  class Caller {
   public:
    Caller(Callers& callers, Lane& lane) : callers_(callers), lane_(lane), alone_(callers.inside_++ == 0) {
      callers_.unanswered_.fetch_add(1);
    }
    Caller(const Caller&) = delete;
    Caller& operator=(const Caller&) = delete;
    ~Caller() {
      --callers_.inside_;
      if (callers_.inside_ != 0 && callers_.all_wait()) lane_.announce();
    }

    // Only one who is alone may run its batch itself: with others, who wait for the GIL, a thread that never sleeps
    // would keep them from it and run batches of one.
    bool alone() const { return alone_; }

   private:
    Callers& callers_;
    Lane& lane_;
    const bool alone_;
  };

  // Whether nobody is on its way out.
  bool all_wait() const { return unanswered_.load() == inside_; }

  // A caller's request is answered, or was refused.  From any thread.
  void answered() { unanswered_.fetch_sub(1); }

 private:
  int inside_ = 0;
  std::atomic<int> unanswered_{0};
};

}  // namespace headrace
