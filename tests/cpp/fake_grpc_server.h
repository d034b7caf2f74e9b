// SPDX-License-Identifier: Apache-2.0
//
// FakeGrpcServer: a small gRPC server on a port of 127.0.0.1 that answers each call as its test says.
//
// Thread safety: the answer function runs in the server's one thread; everything else from any.

#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <nghttp2/nghttp2.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace headrace {

class FakeGrpcServer {
 public:
  struct Call {
    std::map<std::string, std::string> headers;
    std::string body;  // with its prefix
  };

  struct Answer {
    std::string message{};
    int status = 0;  // none if negative
    std::string text{};
    std::string http_status = "200";
    std::string body{};              // instead of the message with its prefix, if not empty
    std::uint32_t reset = 0;         // an HTTP/2 error that ends the stream instead
    bool silent = false;             // nothing at all
    bool says_goodbye = false;       // GOAWAY, which lets the calls under way end
    bool closes_connection = false;  // at once
  };

  using AnswerFunction = std::function<Answer(const Call&)>;

  explicit FakeGrpcServer(AnswerFunction answer, std::vector<nghttp2_settings_entry> settings = {})
      : answer_(std::move(answer)), settings_(std::move(settings)), listener_(listen_on_a_free_port(&port_)) {
    thread_ = std::thread([this] { serve(); });
  }
  FakeGrpcServer(const FakeGrpcServer&) = delete;
  FakeGrpcServer& operator=(const FakeGrpcServer&) = delete;
  ~FakeGrpcServer() { stop(); }

  // Closes everything, as a server does that is killed.
  void stop() {
    if (!thread_.joinable()) return;
    const std::uint64_t one = 1;
    EXPECT_EQ(::write(stop_event_, &one, sizeof one), static_cast<ssize_t>(sizeof one));
    thread_.join();
    connections_.clear();
    ::close(listener_);
    ::close(stop_event_);
  }

  std::string port() const { return std::to_string(port_); }
  int calls() const { return calls_; }
  int connections() const { return accepted_; }

  static std::string framed(const std::string& message) {
    const std::uint32_t length = htonl(static_cast<std::uint32_t>(message.size()));
    std::string body(5, '\0');
    std::memcpy(body.data() + 1, &length, sizeof length);
    return body + message;
  }

  static int listen_on_a_free_port(std::uint16_t* port) {
    const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof address;
    EXPECT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), bytes), 0);
    EXPECT_EQ(::listen(fd, 64), 0);
    EXPECT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes), 0);
    *port = ntohs(address.sin_port);
    return fd;
  }

 private:
  struct Stream {
    Call call;
    Answer answer;
    std::size_t sent = 0;
  };

  struct Connection {
    explicit Connection(FakeGrpcServer& server, int fd) : server(server), fd(fd) {
      nghttp2_session_callbacks* callbacks = nullptr;
      nghttp2_session_callbacks_new(&callbacks);
      nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks, on_begin);
      nghttp2_session_callbacks_set_on_header_callback(callbacks, on_header);
      nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data);
      nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, on_frame);
      nghttp2_session_server_new(&session, callbacks, this);
      nghttp2_session_callbacks_del(callbacks);
      const int on = 1;
      ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      nghttp2_submit_settings(session, 0, server.settings_.data(), server.settings_.size());
    }
    ~Connection() {
      nghttp2_session_del(session);
      ::close(fd);
    }

    // False once the connection is over.
    bool turn(bool readable) {
      std::array<std::uint8_t, 65'536> buffer;
      if (readable) {
        const ssize_t bytes = ::recv(fd, buffer.data(), buffer.size(), 0);
        if (bytes <= 0 || nghttp2_session_mem_recv(session, buffer.data(), static_cast<std::size_t>(bytes)) < 0) {
          return false;
        }
      }
      const std::uint8_t* frames = nullptr;
      for (ssize_t bytes; (bytes = nghttp2_session_mem_send(session, &frames)) > 0;) {
        if (::send(fd, frames, static_cast<std::size_t>(bytes), MSG_NOSIGNAL) != bytes) return false;
      }
      return !closing && (nghttp2_session_want_read(session) != 0 || nghttp2_session_want_write(session) != 0);
    }

    Stream& stream_of(const nghttp2_frame* frame) { return streams[frame->hd.stream_id]; }

    static int on_begin(nghttp2_session*, const nghttp2_frame* frame, void* user_data) {
      static_cast<Connection*>(user_data)->stream_of(frame);
      return 0;
    }
    static int on_header(nghttp2_session*, const nghttp2_frame* frame, const std::uint8_t* name, std::size_t name_bytes,
                         const std::uint8_t* value, std::size_t value_bytes, std::uint8_t, void* user_data) {
      static_cast<Connection*>(user_data)->stream_of(frame).call.headers[{name, name + name_bytes}] =
          std::string(value, value + value_bytes);
      return 0;
    }
    static int on_data(nghttp2_session*, std::uint8_t, std::int32_t stream, const std::uint8_t* data, std::size_t bytes,
                       void* user_data) {
      static_cast<Connection*>(user_data)->streams[stream].call.body.append(data, data + bytes);
      return 0;
    }
    static int on_frame(nghttp2_session*, const nghttp2_frame* frame, void* user_data) {
      const bool ends = (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0;
      const bool of_call = frame->hd.type == NGHTTP2_DATA || frame->hd.type == NGHTTP2_HEADERS;
      if (ends && of_call) static_cast<Connection*>(user_data)->answer(frame->hd.stream_id);
      return 0;
    }

    void answer(std::int32_t id) {
      Stream& stream = streams[id];
      ++server.calls_;
      stream.answer = server.answer_(stream.call);
      Answer& answer = stream.answer;
      if (answer.says_goodbye) nghttp2_submit_goaway(session, 0, id, NGHTTP2_NO_ERROR, nullptr, 0);
      if (answer.closes_connection) closing = true;
      if (answer.silent || answer.closes_connection) return;
      if (answer.reset != 0) {
        nghttp2_submit_rst_stream(session, 0, id, answer.reset);
        return;
      }
      if (answer.body.empty()) answer.body = framed(answer.message);
      const std::vector<std::pair<std::string, std::string>> headers = {{":status", answer.http_status},
                                                                        {"content-type", "application/grpc"}};
      if (answer.status > 0) {  // trailers only
        submit(id,
               {headers[0], headers[1], {"grpc-status", std::to_string(answer.status)}, {"grpc-message", answer.text}},
               nullptr);
        return;
      }
      const nghttp2_data_provider provider{.source = {.ptr = &stream}, .read_callback = on_body};
      submit(id, headers, &provider);
    }

    void submit(std::int32_t id, const std::vector<std::pair<std::string, std::string>>& headers,
                const nghttp2_data_provider* provider) {
      std::vector<nghttp2_nv> pairs = as_pairs(headers);
      nghttp2_submit_response(session, id, pairs.data(), pairs.size(), provider);
    }

    // Valid as long as the headers are.
    static std::vector<nghttp2_nv> as_pairs(const std::vector<std::pair<std::string, std::string>>& headers) {
      std::vector<nghttp2_nv> pairs;
      for (const auto& [name, value] : headers) {
        const auto bytes = [](const std::string& text) {
          return const_cast<std::uint8_t*>(reinterpret_cast<const std::uint8_t*>(text.data()));
        };
        pairs.push_back({bytes(name), bytes(value), name.size(), value.size(), NGHTTP2_NV_FLAG_NONE});
      }
      return pairs;
    }

    static ssize_t on_body(nghttp2_session* session, std::int32_t id, std::uint8_t* to, std::size_t bytes,
                           std::uint32_t* flags, nghttp2_data_source* source, void*) {
      Stream& stream = *static_cast<Stream*>(source->ptr);
      bytes = std::min(bytes, stream.answer.body.size() - stream.sent);
      std::memcpy(to, stream.answer.body.data() + stream.sent, bytes);
      stream.sent += bytes;
      if (stream.sent == stream.answer.body.size()) {
        *flags |= NGHTTP2_DATA_FLAG_EOF;
        if (stream.answer.status == 0) {
          *flags |= NGHTTP2_DATA_FLAG_NO_END_STREAM;
          const std::vector<std::pair<std::string, std::string>> ok = {{"grpc-status", "0"}};
          std::vector<nghttp2_nv> trailers = as_pairs(ok);
          nghttp2_submit_trailer(session, id, trailers.data(), trailers.size());
        }
      }
      return static_cast<ssize_t>(bytes);
    }

    FakeGrpcServer& server;
    const int fd;
    nghttp2_session* session = nullptr;
    std::map<std::int32_t, Stream> streams;
    bool closing = false;
  };

  void serve() {
    for (;;) {
      std::vector<pollfd> polled{{stop_event_, POLLIN, 0}, {listener_, POLLIN, 0}};
      for (const auto& connection : connections_) polled.push_back({connection->fd, POLLIN, 0});
      ::poll(polled.data(), polled.size(), -1);
      if (polled[0].revents != 0) return;
      std::vector<std::unique_ptr<Connection>> open;
      for (std::size_t i = 0; i < connections_.size(); ++i) {
        if (connections_[i]->turn(polled[i + 2].revents != 0)) open.push_back(std::move(connections_[i]));
      }
      connections_ = std::move(open);
      if (polled[1].revents != 0) {
        connections_.push_back(
            std::make_unique<Connection>(*this, ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC)));
        connections_.back()->turn(false);
        ++accepted_;
      }
    }
  }

  const AnswerFunction answer_;
  const std::vector<nghttp2_settings_entry> settings_;
  std::uint16_t port_ = 0;
  const int listener_;
  const int stop_event_ = ::eventfd(0, EFD_CLOEXEC);
  std::atomic<int> calls_{0};
  std::atomic<int> accepted_{0};
  std::vector<std::unique_ptr<Connection>> connections_;  // of the thread
  std::thread thread_;
};

}  // namespace headrace
