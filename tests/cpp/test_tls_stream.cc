// SPDX-License-Identifier: Apache-2.0

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "net/tls_stream.h"
#include "tls_client.h"

namespace headrace {
namespace {

// A TlsStream and a client at the two ends of a pair of sockets, in one thread.
class TlsStreamTest : public testing::TestWithParam<int> {
 protected:
  TlsStreamTest() {
    const Authority authority("authority");
    connect(authority.issue("server"));
  }

  void connect(const Identity& identity) {
    EXPECT_TRUE(
        TlsContext::make({.private_key = identity.private_key, .certificate = identity.certificate}, &context_).ok());
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    client_socket_ = Descriptor(ends[0]);
    stream_ = std::make_unique<TlsStream>(*context_, Descriptor(ends[1]));
    client_ = std::make_unique<TlsSession>(TlsClientOptions{.version = GetParam()});
    SSL_set_fd(client_->ssl(), client_socket_.fd());
  }

  void shake_hands() {
    EXPECT_FALSE(stream_->is_established());
    while (SSL_connect(client_->ssl()) != 1 || !stream_->is_established()) {
      const ByteStream::Moved moved = stream_->receive(buffer_);
      ASSERT_FALSE(moved.closed);
      ASSERT_EQ(moved.bytes, 0u);
      ASSERT_FALSE(stream_->wants_room());
    }
    char byte;
    EXPECT_LE(SSL_read(client_->ssl(), &byte, 1), 0);  // the tickets
  }

  bool is_readable() const {
    pollfd readable{stream_->fd(), POLLIN, 0};
    return ::poll(&readable, 1, 0) == 1;
  }
  // Of the client's `bytes`, how many it could send.
  std::size_t client_sends(std::string_view bytes) {
    std::size_t sent = 0, size = 0;
    while (sent < bytes.size() && SSL_write_ex(client_->ssl(), bytes.data() + sent, bytes.size() - sent, &size) == 1)
      sent += size;
    return sent;
  }
  std::string client_receives() {
    std::string received;
    char part[5000];
    std::size_t size = 0;
    while (SSL_read_ex(client_->ssl(), part, sizeof part, &size) == 1) received.append(part, size);
    return received;
  }
  std::string received(const ByteStream::Moved& moved) const {
    return {reinterpret_cast<const char*>(buffer_.data()), moved.bytes};
  }

  static std::string pattern(std::size_t size) {
    std::string bytes(size, '\0');
    for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 7 + i / 251);
    return bytes;
  }

  std::shared_ptr<const TlsContext> context_;
  Descriptor client_socket_;
  std::unique_ptr<TlsStream> stream_;
  std::unique_ptr<TlsSession> client_;
  std::vector<std::byte> buffer_ = std::vector<std::byte>(ByteStream::kReceiveBytesMin);
};

// What a level-triggered poll needs: nothing is left that the socket does not tell of, however small the buffer.
TEST_P(TlsStreamTest, ReceivesEverythingByTheSocketsWordAlone) {
  shake_hands();
  const std::string bytes = pattern(1'000'000);
  for (std::size_t extra : {0u, 1u, 16'000u, 100'000u, 300'000u}) {
    buffer_.resize(ByteStream::kReceiveBytesMin + extra);
    std::string all;
    for (std::size_t sent = 0; sent < bytes.size();) {
      sent += client_sends(std::string_view(bytes).substr(sent));
      while (is_readable()) {
        const ByteStream::Moved moved = stream_->receive(buffer_);
        ASSERT_FALSE(moved.closed);
        all += received(moved);
      }
      if (SSL_want_write(client_->ssl())) continue;  // a record is under way in part
      ASSERT_EQ(all.size(), sent);
    }
    EXPECT_TRUE(all == bytes) << all.size();
  }
}

TEST_P(TlsStreamTest, SendsWhatTheSocketTakesAndGoesOnFromThere) {
  shake_hands();
  std::string bytes = pattern(3'000'000);
  std::string all;
  int full = 0;
  for (std::size_t sent = 0; sent < bytes.size();) {
    const ByteStream::Moved moved = stream_->send(std::as_bytes(std::span(bytes).subspan(sent)));
    ASSERT_FALSE(moved.closed);
    sent += moved.bytes;
    if (sent < bytes.size()) {
      ASSERT_TRUE(stream_->wants_room());
      ++full;
    }
    bytes = std::string(bytes.data(), bytes.size());  // at another address
    all += client_receives();
  }
  EXPECT_FALSE(stream_->wants_room());
  EXPECT_GT(full, 1);
  EXPECT_TRUE(all == bytes) << all.size();
}

TEST_P(TlsStreamTest, BeforeTheClientHasSpokenItWaitsForIt) {
  const ByteStream::Moved sent = stream_->send(std::as_bytes(std::span(std::string_view("hello"))));
  EXPECT_EQ(sent.bytes, 0u);
  EXPECT_FALSE(sent.closed);
  EXPECT_FALSE(stream_->wants_room());
  const ByteStream::Moved received = stream_->receive(buffer_);
  EXPECT_EQ(received.bytes, 0u);
  EXPECT_FALSE(received.closed);
  shake_hands();
  EXPECT_EQ(stream_->send(std::as_bytes(std::span(std::string_view("hello")))).bytes, 5u);
  EXPECT_EQ(client_receives(), "hello");
}

TEST_P(TlsStreamTest, AHandshakeThatFillsTheSocketWaitsForRoom) {
  const Authority authority("authority");
  Identity identity = authority.issue("server");
  const std::string large = Authority("large", std::string(60'000, 'x')).certificate();
  for (int i = 0; i < 20; ++i) identity.certificate += large;
  connect(identity);
  int waits = 0;
  bool sent_all = false;
  std::string all;
  while (!sent_all || !stream_->is_established()) {
    // What the client has to say comes with its handshake's last words.
    if (!sent_all && SSL_connect(client_->ssl()) == 1) sent_all = client_sends("hello") == 5;
    const ByteStream::Moved moved = stream_->receive(buffer_);
    ASSERT_FALSE(moved.closed);
    all += received(moved);
    if (!stream_->receive_wants_room()) continue;
    ++waits;
    EXPECT_EQ(stream_->send(std::as_bytes(std::span(std::string_view("x")))).bytes, 0u);
    EXPECT_TRUE(stream_->wants_room());
  }
  EXPECT_EQ(all, "hello");
  EXPECT_GT(waits, 1);
  EXPECT_FALSE(stream_->wants_room());
}

TEST_P(TlsStreamTest, TheLastBytesComeWithTheEnd) {
  shake_hands();
  ASSERT_EQ(client_sends("the last"), 8u);
  SSL_shutdown(client_->ssl());
  const ByteStream::Moved moved = stream_->receive(buffer_);
  EXPECT_EQ(received(moved), "the last");
  EXPECT_TRUE(moved.closed);
}

TEST_P(TlsStreamTest, TellsTheClientThatItEnds) {
  shake_hands();
  ASSERT_EQ(stream_->send(std::as_bytes(std::span(std::string_view("the last")))).bytes, 8u);
  stream_->end();
  EXPECT_EQ(client_receives(), "the last");
  EXPECT_EQ(SSL_get_shutdown(client_->ssl()), SSL_RECEIVED_SHUTDOWN);
}

TEST_P(TlsStreamTest, ClosesOnASocketThatEndsAnywhere) {
  shake_hands();
  ASSERT_EQ(client_sends("something"), 9u);
  client_socket_ = Descriptor();
  const ByteStream::Moved moved = stream_->receive(buffer_);
  EXPECT_EQ(received(moved), "something");
  EXPECT_TRUE(stream_->receive(buffer_).closed);
  EXPECT_TRUE(stream_->send(std::as_bytes(std::span(std::string_view("x")))).closed);
  stream_->end();
}

TEST_P(TlsStreamTest, ClosesOnARecordThatWasTamperedWith) {
  shake_hands();
  const auto end_of_client = client_socket_.fd();
  ASSERT_EQ(client_sends("something"), 9u);
  std::string record(1000, '\0');
  record.resize(static_cast<std::size_t>(::recv(stream_->fd(), record.data(), record.size(), 0)));
  record.back() ^= 1;
  ASSERT_EQ(::send(end_of_client, record.data(), record.size(), 0), static_cast<ssize_t>(record.size()));
  const ByteStream::Moved moved = stream_->receive(buffer_);
  EXPECT_EQ(moved.bytes, 0u);
  EXPECT_TRUE(moved.closed);
  EXPECT_TRUE(stream_->receive(buffer_).closed);
}

INSTANTIATE_TEST_SUITE_P(Versions, TlsStreamTest, testing::Values(TLS1_2_VERSION, TLS1_3_VERSION),
                         [](const auto& info) { return info.param == TLS1_2_VERSION ? "Tls12" : "Tls13"; });

}  // namespace
}  // namespace headrace
