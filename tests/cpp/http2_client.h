// SPDX-License-Identifier: Apache-2.0
//
// Http2Client: a gRPC client over nghttp2 that a test can look into, and RawClient: a socket for bytes made by hand.
//
// Thread safety: one thread at a time.

#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <nghttp2/nghttp2.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fake_request.h"

namespace headrace {

// A message behind its prefix.
inline std::string framed(std::string_view message, bool compressed = false) {
  std::string bytes(1, static_cast<char>(compressed));
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(message.size() >> shift);
  return bytes.append(message);
}

// What a client begins with, before its SETTINGS.
inline constexpr std::string_view kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

inline std::string frame(std::uint8_t type, std::uint8_t flags, std::uint32_t stream, std::string_view payload) {
  std::string bytes;
  for (int shift = 16; shift >= 0; shift -= 8) bytes += static_cast<char>(payload.size() >> shift);
  bytes += static_cast<char>(type);
  bytes += static_cast<char>(flags);
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(stream >> shift);
  return bytes.append(payload);
}

// What the last frame of a connection, GOAWAY, gives as its error.
inline std::uint32_t goaway_error(std::string_view bytes) {
  std::uint32_t error = ~0u;
  while (bytes.size() >= 9) {
    std::size_t size = 0;
    for (int i = 0; i < 3; ++i) size = size << 8 | static_cast<unsigned char>(bytes[i]);
    if (bytes[3] == NGHTTP2_GOAWAY && bytes.size() >= 17) {
      error = 0;
      for (int i = 13; i < 17; ++i) error = error << 8 | static_cast<unsigned char>(bytes[i]);
    }
    bytes.remove_prefix(std::min(bytes.size(), size + 9));
  }
  return error;
}

class RawClient {
 public:
  explicit RawClient(int port) : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    EXPECT_EQ(connect(fd_, port), 0) << strerror(errno);
    const int on = 1;
    ::setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  }
  explicit RawClient(const std::string& unix_path) : fd_(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    unix_path.copy(address.sun_path, sizeof address.sun_path - 1);
    EXPECT_EQ(::connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0) << strerror(errno);
  }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;
  virtual ~RawClient() { disconnect(); }

  // What HTTP/2 goes through; as send() and recv() of a socket.
  virtual ssize_t write_some(std::string_view bytes) { return ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  virtual ssize_t read_some(void* buffer, std::size_t size) { return ::recv(fd_, buffer, size, 0); }

  int fd() const { return fd_; }
  void disconnect() {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }

  // 0, or errno.
  static int try_connect(int port) {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int error = connect(fd, port) == 0 ? 0 : errno;
    ::close(fd);
    return error;
  }

  // Whether the server took all of it.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }

  // Everything until the server closes; `reset`, if given, tells whether that was by a reset.
  std::string receive_all(bool* reset = nullptr) {
    std::string bytes;
    char buffer[4096];
    pollfd readable{fd_, POLLIN, 0};
    while (::poll(&readable, 1, static_cast<int>(std::chrono::milliseconds(kEventLimit).count())) > 0) {
      const ssize_t size = ::recv(fd_, buffer, sizeof buffer, 0);
      if (reset != nullptr) *reset = size < 0;
      if (size <= 0) return bytes;
      bytes.append(buffer, static_cast<std::size_t>(size));
    }
    ADD_FAILURE() << "the server did not close the connection";
    return bytes;
  }

 private:
  static int connect(int fd, int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address);
  }

  int fd_;
};

class Http2Client {
 public:
  using Headers = std::vector<std::pair<std::string, std::string>>;

  struct Stream {
    std::map<std::string, std::string> headers;  // trailers too
    int header_blocks = 0;
    std::string data;
    std::size_t data_frames = 0;
    bool closed = false;
    std::uint32_t error = 0;  // of RST_STREAM

    // The first message, without its prefix.
    std::string message() const { return data.size() < 5 ? "" : data.substr(5); }
    std::string status() const { return header("grpc-status"); }
    std::string text() const { return header("grpc-message"); }
    std::string header(const std::string& name) const {
      const auto found = headers.find(name);
      return found == headers.end() ? "" : found->second;
    }

   private:
    friend class Http2Client;
    std::string to_send;
    std::size_t sent = 0;
    bool ends = false;
  };

  // Of a server at a port or a unix socket's path.  A negative window leaves flow control at HTTP/2's own 65,535 bytes.
  explicit Http2Client(int port, std::int32_t window_bytes = -1)
      : Http2Client(std::make_unique<RawClient>(port), window_bytes) {}
  explicit Http2Client(const std::string& unix_path) : Http2Client(std::make_unique<RawClient>(unix_path)) {}
  explicit Http2Client(std::unique_ptr<RawClient> socket, std::int32_t window_bytes = -1) : socket_(std::move(socket)) {
    ::fcntl(socket_->fd(), F_SETFL, O_NONBLOCK);
    nghttp2_session_callbacks* callbacks = nullptr;
    nghttp2_session_callbacks_new(&callbacks);
    nghttp2_session_callbacks_set_on_header_callback(callbacks, on_header);
    nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks, on_begin_headers);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data);
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, on_frame);
    nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_close);
    nghttp2_option* option = nullptr;
    nghttp2_option_new(&option);
    nghttp2_option_set_peer_max_concurrent_streams(option, 1 << 20);
    nghttp2_session_client_new2(&session_, callbacks, this, option);
    nghttp2_option_del(option);
    nghttp2_session_callbacks_del(callbacks);
    if (window_bytes < 0) {
      nghttp2_submit_settings(session_, NGHTTP2_FLAG_NONE, nullptr, 0);
    } else {
      const nghttp2_settings_entry entry{NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE,
                                         static_cast<std::uint32_t>(window_bytes)};
      nghttp2_submit_settings(session_, NGHTTP2_FLAG_NONE, &entry, 1);
      nghttp2_session_set_local_window_size(session_, NGHTTP2_FLAG_NONE, 0, std::max(window_bytes, 65'535));
    }
  }
  ~Http2Client() { nghttp2_session_del(session_); }

  static Headers grpc_headers(const std::string& path) {
    return {{":method", "POST"},    {":scheme", "http"}, {":path", path},
            {":authority", "test"}, {"te", "trailers"},  {"content-type", "application/grpc"}};
  }

  // Begins a call whose bytes are sent as they are; nothing is sent before pump(), wait() or flush().
  std::int32_t begin(const Headers& headers, std::string bytes, bool ends = true) {
    std::vector<nghttp2_nv> list;
    for (const auto& [name, value] : headers)
      list.push_back({reinterpret_cast<std::uint8_t*>(const_cast<char*>(name.data())),
                      reinterpret_cast<std::uint8_t*>(const_cast<char*>(value.data())), name.size(), value.size(),
                      NGHTTP2_NV_FLAG_NONE});
    const nghttp2_data_provider body{{.ptr = this}, on_body_wanted};
    const std::int32_t id = nghttp2_submit_request(session_, nullptr, list.data(), list.size(), &body, nullptr);
    EXPECT_GT(id, 0);
    Stream& stream = streams_[id];
    stream.to_send = std::move(bytes);
    stream.ends = ends;
    return id;
  }
  std::int32_t begin(const std::string& path, std::string_view message, const Headers& more = {}) {
    Headers headers = grpc_headers(path);
    headers.insert(headers.end(), more.begin(), more.end());
    return begin(headers, framed(message));
  }

  // More bytes of a call that has not ended.
  void continue_with(std::int32_t id, std::string_view bytes, bool ends) {
    streams_[id].to_send += bytes;
    streams_[id].ends = ends;
    nghttp2_session_resume_data(session_, id);
  }

  void reset(std::int32_t id) { nghttp2_submit_rst_stream(session_, NGHTTP2_FLAG_NONE, id, NGHTTP2_CANCEL); }

  // Sends and receives until `done`; false if the server closed the connection, or at the limit.
  bool pump(const std::function<bool()>& done) {
    const auto until = std::chrono::steady_clock::now() + kEventLimit;
    while (!done()) {
      if (!exchange_once() || std::chrono::steady_clock::now() > until) return done();
    }
    return true;
  }
  // Until the server has seen everything that was sent.
  bool flush() {
    while (!send_some())  // first of all: a PING overtakes what was not sent
      if (!exchange_once()) return false;
    pinged_ = false;
    nghttp2_submit_ping(session_, NGHTTP2_FLAG_NONE, nullptr);
    return pump([this] { return pinged_; });
  }
  const Stream& wait(std::int32_t id) {
    EXPECT_TRUE(pump([&] { return streams_[id].closed; })) << "no answer on stream " << id;
    return streams_[id];
  }
  bool wait_closed() {
    pump([] { return false; });
    return closed_;
  }
  const Stream& call(const std::string& path, std::string_view message, const Headers& more = {}) {
    return wait(begin(path, message, more));
  }

  bool sent_all(std::int32_t id) const {
    const Stream& stream = streams_.at(id);
    return stream.sent == stream.to_send.size();
  }
  Stream& stream(std::int32_t id) { return streams_[id]; }
  int goaways() const { return goaways_; }
  std::uint32_t goaway_error() const { return goaway_error_; }
  int pings() const { return pings_; }  // of the server
  std::uint32_t setting(nghttp2_settings_id id) { return nghttp2_session_get_remote_settings(session_, id); }
  nghttp2_session* session() { return session_; }
  RawClient& socket() { return *socket_; }

  std::size_t chunk_bytes_max = 1 << 20;  // of a DATA frame

 private:
  // Whether the socket took everything that may be sent now.
  bool send_some() {
    for (;;) {
      if (sent_ == out_.size()) {
        const std::uint8_t* data = nullptr;
        const ssize_t size = nghttp2_session_mem_send(session_, &data);
        if (size <= 0) return true;
        out_.assign(reinterpret_cast<const char*>(data), static_cast<std::size_t>(size));
        sent_ = 0;
      }
      const ssize_t size = socket_->write_some(std::string_view(out_).substr(sent_));
      if (size < 0 && errno == EAGAIN) return false;
      if (size < 0) sent_ = out_.size();  // the server has closed; what it sent before is still read
      if (size > 0) sent_ += static_cast<std::size_t>(size);
    }
  }

  bool exchange_once() {
    send_some();
    pollfd ready{socket_->fd(), static_cast<short>(POLLIN | (sent_ < out_.size() ? POLLOUT : 0)), 0};
    if (::poll(&ready, 1, static_cast<int>(std::chrono::milliseconds(kEventLimit).count())) <= 0) return false;
    if ((ready.revents & ~POLLOUT) == 0) return true;
    std::uint8_t buffer[16384];
    const ssize_t size = socket_->read_some(buffer, sizeof buffer);
    if (size < 0 && errno == EAGAIN) return true;
    closed_ = size <= 0;
    return size > 0 && nghttp2_session_mem_recv(session_, buffer, static_cast<std::size_t>(size)) >= 0;
  }

  static Http2Client& of(void* self) { return *static_cast<Http2Client*>(self); }

  static int on_begin_headers(nghttp2_session*, const nghttp2_frame* frame, void* self) {
    ++of(self).streams_[frame->hd.stream_id].header_blocks;
    return 0;
  }
  static int on_header(nghttp2_session*, const nghttp2_frame* frame, const std::uint8_t* name, std::size_t name_size,
                       const std::uint8_t* value, std::size_t value_size, std::uint8_t, void* self) {
    of(self).streams_[frame->hd.stream_id].headers[{reinterpret_cast<const char*>(name), name_size}].assign(
        reinterpret_cast<const char*>(value), value_size);
    return 0;
  }
  static int on_data(nghttp2_session*, std::uint8_t, std::int32_t id, const std::uint8_t* data, std::size_t size,
                     void* self) {
    of(self).streams_[id].data.append(reinterpret_cast<const char*>(data), size);
    return 0;
  }
  static int on_frame(nghttp2_session*, const nghttp2_frame* frame, void* self) {
    if (frame->hd.type == NGHTTP2_PING && (frame->hd.flags & NGHTTP2_FLAG_ACK) != 0) of(self).pinged_ = true;
    if (frame->hd.type == NGHTTP2_PING && (frame->hd.flags & NGHTTP2_FLAG_ACK) == 0) ++of(self).pings_;
    if (frame->hd.type == NGHTTP2_DATA) ++of(self).streams_[frame->hd.stream_id].data_frames;
    if (frame->hd.type != NGHTTP2_GOAWAY) return 0;
    ++of(self).goaways_;
    of(self).goaway_error_ = frame->goaway.error_code;
    return 0;
  }
  static int on_close(nghttp2_session*, std::int32_t id, std::uint32_t error, void* self) {
    of(self).streams_[id].closed = true;
    of(self).streams_[id].error = error;
    return 0;
  }
  static ssize_t on_body_wanted(nghttp2_session*, std::int32_t id, std::uint8_t* out, std::size_t size,
                                std::uint32_t* flags, nghttp2_data_source*, void* self) {
    Stream& stream = of(self).streams_[id];
    const std::size_t part = std::min({size, of(self).chunk_bytes_max, stream.to_send.size() - stream.sent});
    if (part == 0 && !stream.ends) return NGHTTP2_ERR_DEFERRED;
    std::memcpy(out, stream.to_send.data() + stream.sent, part);
    stream.sent += part;
    if (stream.ends && stream.sent == stream.to_send.size()) *flags |= NGHTTP2_DATA_FLAG_EOF;
    return static_cast<ssize_t>(part);
  }

  std::unique_ptr<RawClient> socket_;
  nghttp2_session* session_ = nullptr;
  std::map<std::int32_t, Stream> streams_;
  std::string out_;
  std::size_t sent_ = 0;
  bool pinged_ = false;
  bool closed_ = false;
  int goaways_ = 0;
  int pings_ = 0;
  std::uint32_t goaway_error_ = 0;
};

}  // namespace headrace
