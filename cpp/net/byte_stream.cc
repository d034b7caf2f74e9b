// SPDX-License-Identifier: Apache-2.0

#include "net/byte_stream.h"

#include <sys/socket.h>

#include <cerrno>

namespace headrace {

void ByteStream::end() { ::shutdown(socket_.fd(), SHUT_WR); }

ByteStream::Moved PlainStream::receive(std::span<std::byte> buffer) {
  const ssize_t size = ::recv(socket_.fd(), buffer.data(), buffer.size(), 0);
  if (size > 0) return {.bytes = static_cast<std::size_t>(size)};
  return {.closed = size == 0 || (errno != EAGAIN && errno != EINTR)};
}

ByteStream::Moved PlainStream::send(std::span<const std::byte> bytes) {
  ssize_t size;
  do size = ::send(socket_.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  while (size < 0 && errno == EINTR);
  send_wants_room_ = size < 0 && errno == EAGAIN;
  if (size >= 0) return {.bytes = static_cast<std::size_t>(size)};
  return {.closed = !send_wants_room_};
}

}  // namespace headrace
