// SPDX-License-Identifier: Apache-2.0
//
// ByteStream: what a connection reads and writes: a socket as it is (PlainStream), or TLS over one (TlsStream).
//
// Thread safety: the thread of its connection's loop.
// Ownership: owns its socket.
// Progress: never blocks; where the socket cannot give or take, a call returns with less.
// Invariant: receive() leaves nothing behind that the socket would not tell of again, so a level-triggered poll
// suffices.

#pragma once

#include <cstddef>
#include <span>
#include <utility>

#include "net/descriptor.h"

namespace headrace {

class ByteStream {
 public:
  // No bytes and not closed: not before the socket is ready again.
  struct Moved {
    std::size_t bytes = 0;
    bool closed = false;  // no more can follow: the peer has gone, or has broken the protocol
  };

  // REQUIRES of every receive(): that much room.
  static constexpr std::size_t kReceiveBytesMin = 32 << 10;

  ByteStream(const ByteStream&) = delete;
  ByteStream& operator=(const ByteStream&) = delete;
  virtual ~ByteStream() = default;

  // Takes in what has come.  There may be bytes and an end at once.
  virtual Moved receive(std::span<std::byte> buffer) = 0;
  // Sends what the socket takes.  What it did not take is to be given again, at another address or the same.
  virtual Moved send(std::span<const std::byte> bytes) = 0;
  // Sends no more.  What was sent reaches the peer, and that it is all.
  virtual void end();

  int fd() const { return socket_.fd(); }
  // Whether the peers have agreed on how to talk; until then nothing is received, and nothing sent.
  bool is_established() const { return established_; }
  // Whether the socket is to be polled for room: then send() goes on, and receive() too if it waits for room.
  bool wants_room() const { return send_wants_room_ || receive_wants_room_; }
  bool receive_wants_room() const { return receive_wants_room_; }

 protected:
  ByteStream(Descriptor socket, bool established) : socket_(std::move(socket)), established_(established) {}

  Descriptor socket_;
  bool established_;
  bool send_wants_room_ = false;
  bool receive_wants_room_ = false;  // it has to answer before it can go on
};

class PlainStream final : public ByteStream {
 public:
  explicit PlainStream(Descriptor socket) : ByteStream(std::move(socket), true) {}

  Moved receive(std::span<std::byte> buffer) override;
  Moved send(std::span<const std::byte> bytes) override;
};

}  // namespace headrace
