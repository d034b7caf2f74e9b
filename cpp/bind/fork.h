// SPDX-License-Identifier: Apache-2.0
//
// MadeHere: whether this process is the one that made an object, or a fork of it.  Threads do not survive a fork, so
// what has threads is unusable in the child, and is left alone there instead of being destroyed.
//
// Thread safety: any thread.

#pragma once

#include "bind/status_error.h"

namespace headrace {

// How many forks lie between this process and the one that asked first.
int fork_generation();

// Whether this is the process' main thread: the one in which Python runs the handlers of signals.
bool is_main_thread();

class MadeHere {
 public:
  bool still_here() const { return generation_ == fork_generation(); }

  // Throws FAILED_PRECONDITION in a forked child.
  void check(const char* what) const {
    if (still_here()) return;
    throw_status(FailedPrecondition(std::string("this ") + what +
                                    " was made before fork(), and its threads stayed with the parent process: make "
                                    "one after the fork"));
  }

 private:
  int generation_ = fork_generation();
};

}  // namespace headrace
