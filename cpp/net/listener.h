// SPDX-License-Identifier: Apache-2.0
//
// listen_on: a listening socket, and in plain words why there is none.
//
// Thread safety: pure but for the socket it makes.

#pragma once

#include <string>

#include "core/status.h"
#include "net/descriptor.h"

namespace headrace {

// `host` is an IPv4 or IPv6 address, or a name of this machine; `port` 0 takes a free one.  `port` then has the port.
// FAILED_PRECONDITION for a port that is taken, PERMISSION_DENIED for one that needs a right, INVALID_ARGUMENT for a
// host that is not this machine's.
Status listen_on(const std::string& host, int* port, Descriptor* socket);

}  // namespace headrace
