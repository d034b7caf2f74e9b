// SPDX-License-Identifier: Apache-2.0

#include "net/listener.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <memory>

namespace headrace {
namespace {

Status NotThisMachines(const std::string& host) {
  return InvalidArgument("host '" + host + "': not an address of this machine");
}

Status CannotListen(int port, int error) {
  const std::string where = "port " + std::to_string(port) + ": ";
  if (error == EACCES || error == EPERM)
    return {Code::kPermissionDenied,
            where + "not for uid " + std::to_string(::getuid()) + "; choose another with port="};
  std::string reason = std::strerror(error);
  std::transform(reason.begin(), reason.end(), reason.begin(), [](unsigned char c) { return std::tolower(c); });
  return FailedPrecondition(where + reason + "; choose another with port=");
}

// 0, or errno.
int try_listen(const addrinfo& address, Descriptor* listening) {
  Descriptor socket(::socket(address.ai_family, address.ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int on = 1;
  if (!socket) return errno;
  ::setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);  // a port that somebody listens on is refused
  const int off = 0;
  if (address.ai_family == AF_INET6) ::setsockopt(socket.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
  if (::bind(socket.fd(), address.ai_addr, address.ai_addrlen) != 0) return errno;
  if (::listen(socket.fd(), SOMAXCONN) != 0) return errno;
  *listening = std::move(socket);
  return 0;
}

int port_of(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

}  // namespace

Status listen_on(const std::string& host, int* port, Descriptor* socket) {
  addrinfo wanted{};
  wanted.ai_family = AF_UNSPEC;
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (::getaddrinfo(host.c_str(), std::to_string(*port).c_str(), &wanted, &found) != 0) return NotThisMachines(host);
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> addresses(found, ::freeaddrinfo);
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    const int error = try_listen(*address, socket);
    if (error == 0) {
      *port = port_of(socket->fd());
      return {};
    }
    // A machine without IPv6 has names that are addresses of it all the same.
    if (error != EADDRNOTAVAIL && error != EAFNOSUPPORT) return CannotListen(*port, error);
  }
  return NotThisMachines(host);
}

}  // namespace headrace
