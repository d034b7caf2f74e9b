// SPDX-License-Identifier: Apache-2.0
//
// TlsStream: the server's end of TLS over a socket.
//
// Thread safety: the thread of its connection's loop.
// Ownership: owns its socket and its session; keeps what it needs of the context.
// Invariant: after receive() OpenSSL holds no whole record, unless it waits for room: in one call it gets no more bytes
// of the socket than the buffer has room for, beside those of a record that it held in part.

#pragma once

#include <cstddef>
#include <span>

#include "net/byte_stream.h"
#include "net/descriptor.h"
#include "net/tls_context.h"

struct bio_st;
struct bio_method_st;

namespace headrace {

class TlsStream final : public ByteStream {
 public:
  TlsStream(const TlsContext& context, Descriptor socket);
  ~TlsStream() override;

  Moved receive(std::span<std::byte> buffer) override;
  Moved send(std::span<const std::byte> bytes) override;
  // With a close_notify, if the socket takes it.
  void end() override;

 private:
  // What OpenSSL calls for bytes of the socket and with bytes for it.
  static const bio_method_st* socket_method();
  static int read_socket(bio_st* bio, char* data, std::size_t size, std::size_t* read);
  static int write_socket(bio_st* bio, const char* data, std::size_t size, std::size_t* written);
  static long control(bio_st* bio, int command, long number, void* pointer);

  bool lacks_room(int result);

  ssl_st* const session_;
  bool broken_ = false;        // the session may not be used any more
  bool ended_ = false;         // the peer has said that it sends no more
  std::size_t may_fetch_ = 0;  // bytes of the socket; none but in receive()
};

}  // namespace headrace
