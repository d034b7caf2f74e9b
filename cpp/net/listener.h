// SPDX-License-Identifier: Apache-2.0
//
// Listener: a listening socket; listen_on and listen_on_path make them, or say in plain words why there are none.
//
// Thread safety: a value; the functions are pure but for the sockets they make.
// Ownership: a Listener has its socket, and the file of a unix socket.
// Invariant: where a Listener has been, nobody can connect and anybody can listen, even if a forked process kept it.

#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "core/status.h"
#include "net/descriptor.h"

namespace headrace {

class Listener {
 public:
  // `path` is that of a unix socket, whose file is removed with the listener, unless somebody has put another there.
  explicit Listener(Descriptor socket, const std::string& path = "");
  Listener(Listener&& other) noexcept = default;
  Listener& operator=(Listener&& other) = delete;
  ~Listener();

  int fd() const { return socket_.fd(); }

 private:
  Descriptor socket_;
  std::string path_;  // absolute
  dev_t device_ = 0;  // of the file, with which it is known again
  ino_t inode_ = 0;
};

// Adds to `listeners`.  `host` is an IPv4 or IPv6 address, or a name of this machine, which stands for all addresses it
// has; `port` 0 takes one that is free on all of them.  `port` then has the port.  FAILED_PRECONDITION for a port that
// is taken, PERMISSION_DENIED for one that needs a right, INVALID_ARGUMENT for a host that is not this machine's.
Status listen_on(const std::string& host, int* port, std::vector<Listener>* listeners);

// Adds to `listeners`.  The file that a dead server has left is replaced.  FAILED_PRECONDITION for a path where a
// server listens or another file is, PERMISSION_DENIED for one that needs a right, INVALID_ARGUMENT for one that can be
// none.
Status listen_on_path(const std::string& path, std::vector<Listener>* listeners);

// Whether a connection came through a unix socket.
bool is_unix(const Descriptor& socket);

}  // namespace headrace
