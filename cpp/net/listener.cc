// SPDX-License-Identifier: Apache-2.0

#include "net/listener.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

namespace headrace {
namespace {

// How often a port is tried that is free on one address of a name, until it is free on the others as well.
constexpr int kFreePortsTried = 64;

std::string reason_of(int error) {
  std::string reason = std::strerror(error);
  std::transform(reason.begin(), reason.end(), reason.begin(), [](unsigned char c) { return std::tolower(c); });
  return reason;
}

// ---- Ports ----------------------------------------------------------------------------------------------------------

Status not_this_machines(const std::string& host) {
  return InvalidArgument("host '" + host + "': not an address of this machine");
}

Status cannot_listen(int port, int error) {
  const std::string where = "port " + std::to_string(port) + ": ";
  if (error == EACCES || error == EPERM)
    return {Code::kPermissionDenied,
            where + "not for uid " + std::to_string(::getuid()) + "; choose another with port="};
  return FailedPrecondition(where + reason_of(error) + "; choose another with port=");
}

in_port_t& port_of(sockaddr_storage& address) {
  return address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                       : reinterpret_cast<sockaddr_in&>(address).sin_port;
}

// The addresses of a name, each once.
std::vector<sockaddr_storage> addresses_of(const std::string& host) {
  addrinfo wanted{};
  wanted.ai_family = AF_UNSPEC;
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_PASSIVE;
  addrinfo* first = nullptr;
  std::vector<sockaddr_storage> addresses;
  if (::getaddrinfo(host.c_str(), nullptr, &wanted, &first) != 0) return addresses;
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owner(first, ::freeaddrinfo);
  for (const addrinfo* each = first; each != nullptr; each = each->ai_next) {
    sockaddr_storage address{};
    std::memcpy(&address, each->ai_addr, std::min<std::size_t>(each->ai_addrlen, sizeof address));
    const auto same = [&](const sockaddr_storage& other) { return std::memcmp(&other, &address, sizeof other) == 0; };
    if (std::none_of(addresses.begin(), addresses.end(), same)) addresses.push_back(address);
  }
  return addresses;
}

// 0, or errno.  "::" alone is every address of the machine, those of IPv4 too.
int try_listen(sockaddr_storage address, int port, bool alone, std::vector<Listener>* listeners) {
  Descriptor socket(::socket(address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) return errno;
  const int on = 1;
  ::setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);  // a port that somebody listens on is refused
  const bool is_ipv6 = address.ss_family == AF_INET6;
  const int only_ipv6 = alone ? 0 : 1;
  if (is_ipv6) ::setsockopt(socket.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &only_ipv6, sizeof only_ipv6);
  port_of(address) = htons(static_cast<in_port_t>(port));
  const socklen_t size = is_ipv6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  if (::bind(socket.fd(), reinterpret_cast<const sockaddr*>(&address), size) != 0) return errno;
  if (::listen(socket.fd(), SOMAXCONN) != 0) return errno;
  listeners->emplace_back(std::move(socket));
  return 0;
}

int port_of(const Listener& listener) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  ::getsockname(listener.fd(), reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(port_of(address));
}

// Listens on all addresses that the machine has of those, at one port.  0, or errno; EADDRNOTAVAIL where it has none.
int listen_on_all(const std::vector<sockaddr_storage>& addresses, int* port, std::vector<Listener>* listeners) {
  for (const sockaddr_storage& address : addresses) {
    const int error = try_listen(address, *port, addresses.size() == 1, listeners);
    // A machine without IPv6 has names that are addresses of it all the same.
    if (error == EADDRNOTAVAIL || error == EAFNOSUPPORT) continue;
    if (error != 0) return error;
    *port = port_of(listeners->back());
  }
  return listeners->empty() ? EADDRNOTAVAIL : 0;
}

// ---- Unix sockets ---------------------------------------------------------------------------------------------------

Status cannot_listen(const std::string& path, const std::string& reason) {
  return FailedPrecondition("socket path '" + path + "': " + reason + "; choose another with grpc_socket_path=");
}

Status no_path(const std::string& path, const std::string& reason) {
  return InvalidArgument("socket path '" + path + "': " + reason + "; choose another with grpc_socket_path=");
}

Status cannot_listen(const std::string& path, int error) {
  if (error == EACCES || error == EPERM || error == EROFS)
    return {Code::kPermissionDenied, "socket path '" + path + "': not for uid " + std::to_string(::getuid()) +
                                         "; choose another with grpc_socket_path="};
  if (error == ENOENT || error == ENOTDIR)
    return no_path(path, "'" + std::filesystem::path(path).parent_path().string() + "' is no directory");
  return cannot_listen(path, reason_of(error));
}

// Makes room at a path: OK where nothing is there, or was left behind by a server that is no more.
Status remove_what_is_dead(const std::string& path, const sockaddr_un& address) {
  struct stat found {};
  if (::lstat(path.c_str(), &found) != 0) return errno == ENOENT ? Status() : cannot_listen(path, errno);
  if (!S_ISSOCK(found.st_mode)) return cannot_listen(path, "a file that is no socket is there");
  const Descriptor probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!probe) return cannot_listen(path, errno);
  const bool connects = ::connect(probe.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
  if (connects || errno == EAGAIN) return cannot_listen(path, "a server listens there");
  if (errno != ECONNREFUSED && errno != ENOENT) return cannot_listen(path, errno);
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) return cannot_listen(path, errno);
  return {};
}

}  // namespace

Listener::Listener(Descriptor socket, const std::string& path) : socket_(std::move(socket)) {
  struct stat made {};
  std::error_code error;
  if (path.empty() || ::lstat(path.c_str(), &made) != 0) return;
  path_ = std::filesystem::absolute(path, error).string();
  device_ = made.st_dev;
  inode_ = made.st_ino;
}

Listener::~Listener() {
  if (!socket_) return;
  struct stat found {};
  if (!path_.empty() && ::lstat(path_.c_str(), &found) == 0 && found.st_dev == device_ && found.st_ino == inode_)
    ::unlink(path_.c_str());
  ::shutdown(socket_.fd(), SHUT_RDWR);  // closing it is not enough where a forked process has it too
}

Status listen_on(const std::string& host, int* port, std::vector<Listener>* listeners) {
  const std::vector<sockaddr_storage> addresses = addresses_of(host);
  int error = EADDRNOTAVAIL;
  for (int tries = 0; tries < kFreePortsTried; ++tries) {
    int tried = *port;
    std::vector<Listener> made;
    error = listen_on_all(addresses, &tried, &made);
    if (error == 0) {
      *port = tried;
      std::move(made.begin(), made.end(), std::back_inserter(*listeners));
      return {};
    }
    if (error != EADDRINUSE || *port != 0) break;
  }
  return error == EADDRNOTAVAIL ? not_this_machines(host) : cannot_listen(*port, error);
}

Status listen_on_path(const std::string& path, std::vector<Listener>* listeners) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  constexpr std::size_t kLengthMax = sizeof address.sun_path - 1;
  if (path.empty() || path.find('\0') != std::string::npos)
    return no_path(path.c_str(), "it must be text without a NUL");
  if (path.size() > kLengthMax)
    return no_path(
        path, std::to_string(path.size()) + " bytes; the path of a socket has at most " + std::to_string(kLengthMax));
  path.copy(address.sun_path, kLengthMax);
  if (Status status = remove_what_is_dead(path, address); !status.ok()) return status;
  Descriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!socket) return cannot_listen(path, errno);
  if (::bind(socket.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return cannot_listen(path, errno);
  Listener listener(std::move(socket), path);  // from here on the file is removed
  if (::listen(listener.fd(), SOMAXCONN) != 0) return cannot_listen(path, errno);
  listeners->push_back(std::move(listener));
  return {};
}

bool is_unix(const Descriptor& socket) {
  int domain = 0;
  socklen_t size = sizeof domain;
  return ::getsockopt(socket.fd(), SOL_SOCKET, SO_DOMAIN, &domain, &size) == 0 && domain == AF_UNIX;
}

}  // namespace headrace
