// SPDX-License-Identifier: Apache-2.0
//
// EventFd: a file descriptor that turns readable when there is something to take, once until it is cleared.
//
// Thread safety: none but fileno(); its owner's mutex guards the rest together with what there is to take.
// Progress: signal() makes a system call only if the descriptor is not readable already.

#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

#include "bind/status_error.h"

namespace headrace {

class EventFd {
 public:
  EventFd() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (fd_ < 0) throw_status(ResourceExhausted(std::string("no file descriptor for answers: ") + strerror(errno)));
  }
  EventFd(const EventFd&) = delete;
  EventFd& operator=(const EventFd&) = delete;
  ~EventFd() { ::close(fd_); }

  int fileno() const { return fd_; }

  void signal() {
    if (std::exchange(signalled_, true)) return;
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(fd_, &one, sizeof one);  // cannot overflow: it is 0 before
  }

  void clear() {
    if (!std::exchange(signalled_, false)) return;
    std::uint64_t count = 0;
    [[maybe_unused]] const ssize_t cleared = ::read(fd_, &count, sizeof count);
  }

 private:
  const int fd_;
  bool signalled_ = false;  // whether it is readable
};

}  // namespace headrace
