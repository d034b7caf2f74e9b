// SPDX-License-Identifier: Apache-2.0

#include "net/tls_stream.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace headrace {
namespace {

// At least what OpenSSL reads ahead: a record of 16 KiB with all that may be around it.
constexpr std::size_t kReadAheadBytesMax = 18 << 10;
static_assert(ByteStream::kReceiveBytesMin > kReadAheadBytesMax);

// As OpenSSL's own sockets tell it: 1, 0 at an end, and -1, which a handshake must have to try again.
int outcome(ssize_t count, std::size_t* moved) {
  *moved = count > 0 ? static_cast<std::size_t>(count) : 0;
  return count > 0 ? 1 : static_cast<int>(count);
}

}  // namespace

TlsStream::TlsStream(const TlsContext& context, Descriptor socket)
    : ByteStream(std::move(socket), false), session_(context.new_session()) {
  BIO* const bio = session_ == nullptr ? nullptr : BIO_new(socket_method());
  broken_ = bio == nullptr;
  if (broken_) return;
  BIO_set_data(bio, this);
  BIO_set_init(bio, 1);
  SSL_set_bio(session_, bio, bio);
}

TlsStream::~TlsStream() { SSL_free(session_); }

ByteStream::Moved TlsStream::receive(std::span<std::byte> buffer) {
  Moved moved;
  receive_wants_room_ = false;
  may_fetch_ = buffer.size() - kReadAheadBytesMax;
  while (moved.bytes < buffer.size() && !broken_) {
    std::size_t size = 0;
    ERR_clear_error();
    const int result = SSL_read_ex(session_, buffer.data() + moved.bytes, buffer.size() - moved.bytes, &size);
    if (result != 1) {
      receive_wants_room_ = lacks_room(result);
      break;
    }
    moved.bytes += size;
  }
  may_fetch_ = 0;
  established_ = established_ || (!broken_ && SSL_is_init_finished(session_) == 1);
  moved.closed = broken_ || ended_;
  return moved;
}

ByteStream::Moved TlsStream::send(std::span<const std::byte> bytes) {
  Moved moved;
  send_wants_room_ = false;
  // The handshake goes on in receive() alone: OpenSSL takes no other bytes while words of it wait for room.
  while (moved.bytes < bytes.size() && established_ && !broken_) {
    std::size_t size = 0;
    ERR_clear_error();
    const int result = SSL_write_ex(session_, bytes.data() + moved.bytes, bytes.size() - moved.bytes, &size);
    if (result != 1) {
      send_wants_room_ = lacks_room(result);
      break;
    }
    moved.bytes += size;
  }
  moved.closed = broken_;
  return moved;
}

void TlsStream::end() {
  ERR_clear_error();
  if (established_ && !broken_) SSL_shutdown(session_);
  ByteStream::end();
}

// Whether what gave that result can go on once the socket takes more.
bool TlsStream::lacks_room(int result) {
  switch (SSL_get_error(session_, result)) {
    case SSL_ERROR_WANT_WRITE:
      return true;
    case SSL_ERROR_WANT_READ:
      return false;
    case SSL_ERROR_ZERO_RETURN:
      ended_ = true;
      return false;
    default:
      broken_ = true;
      return false;
  }
}

// ---- OpenSSL's side -------------------------------------------------------------------------------------------------

const BIO_METHOD* TlsStream::socket_method() {
  static const BIO_METHOD* const made = [] {
    BIO_METHOD* method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "headrace socket");
    BIO_meth_set_read_ex(method, read_socket);
    BIO_meth_set_write_ex(method, write_socket);
    BIO_meth_set_ctrl(method, control);
    return method;
  }();
  return made;
}

int TlsStream::read_socket(BIO* bio, char* data, std::size_t size, std::size_t* read) {
  auto& stream = *static_cast<TlsStream*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  size = std::min(size, stream.may_fetch_);
  const ssize_t count = size == 0 ? -1 : ::recv(stream.socket_.fd(), data, size, 0);
  if (size == 0) errno = EAGAIN;
  // Less than was asked for is all there was: the poll will tell of more.
  stream.may_fetch_ = count == static_cast<ssize_t>(size) ? stream.may_fetch_ - size : 0;
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_read(bio);
  return outcome(count, read);
}

int TlsStream::write_socket(BIO* bio, const char* data, std::size_t size, std::size_t* written) {
  auto& stream = *static_cast<TlsStream*>(BIO_get_data(bio));
  BIO_clear_retry_flags(bio);
  const ssize_t count = ::send(stream.socket_.fd(), data, size, MSG_NOSIGNAL);
  if (count < 0 && (errno == EAGAIN || errno == EINTR)) BIO_set_retry_write(bio);
  return outcome(count, written);
}

long TlsStream::control(BIO*, int command, long, void*) { return command == BIO_CTRL_FLUSH; }

}  // namespace headrace
