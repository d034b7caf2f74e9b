// SPDX-License-Identifier: Apache-2.0
//
// The floor of what HTTP/2 costs: one thread, epoll and nghttp2, which answers a gRPC message with itself.
//
// It does what the wire needs and nothing else: no paths, no deadlines, no limits, no queue, no second thread.

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <nghttp2/nghttp2.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "rivals/echo.h"

namespace {

// As large as Headrace's, so that clients send both of them their messages in the same frames.
constexpr std::int32_t kStreamWindowBytes = 512 << 10;
constexpr std::int32_t kConnectionWindowBytes = 16 << 20;
constexpr std::uint32_t kFrameBytesMax = 256 << 10;

constexpr std::size_t kReceiveBytes = 256 << 10;
constexpr std::size_t kSendBytes = 256 << 10;
constexpr std::size_t kPrefixBytes = 5;
constexpr int kEventsPerTurn = 64;

nghttp2_nv header(std::string_view name, std::string_view value) {
  return {reinterpret_cast<std::uint8_t*>(const_cast<char*>(name.data())),
          reinterpret_cast<std::uint8_t*>(const_cast<char*>(value.data())), name.size(), value.size(),
          NGHTTP2_NV_FLAG_NO_COPY_NAME | NGHTTP2_NV_FLAG_NO_COPY_VALUE};
}

const std::array kHead = {header(":status", "200"), header("content-type", "application/grpc")};
const std::array kTrailers = {header("grpc-status", "0")};

// What a prefix says.
std::size_t message_bytes(const std::uint8_t* prefix) {
  std::size_t bytes = 0;
  for (std::size_t i = 1; i < kPrefixBytes; ++i) bytes = bytes << 8 | prefix[i];
  return bytes;
}

struct Stream {
  std::string body;  // a message with its prefix: first what comes, then what goes
  std::size_t sent = 0;
};

class Connection {
 public:
  Connection(int socket, const std::string* fixed_reply, std::uint64_t* served)
      : socket_(socket), fixed_reply_(fixed_reply), served_(served) {
    nghttp2_option* options = nullptr;
    nghttp2_option_new(&options);
    nghttp2_option_set_no_closed_streams(options, 1);
    nghttp2_session_server_new2(&session_, callbacks(), this, options);
    nghttp2_option_del(options);
    const std::array<nghttp2_settings_entry, 2> settings = {
        {{NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, static_cast<std::uint32_t>(kStreamWindowBytes)},
         {NGHTTP2_SETTINGS_MAX_FRAME_SIZE, kFrameBytesMax}}};
    nghttp2_submit_settings(session_, NGHTTP2_FLAG_NONE, settings.data(), settings.size());
    nghttp2_session_set_local_window_size(session_, NGHTTP2_FLAG_NONE, 0, kConnectionWindowBytes);
  }

  // nghttp2 closes no streams of a session that ends.
  ~Connection() {
    for (Stream* stream : streams_) delete stream;
    nghttp2_session_del(session_);
    ::close(socket_);
  }

  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  // False once the client is gone.
  bool receive(std::array<std::uint8_t, kReceiveBytes>* buffer) {
    const ssize_t size = ::recv(socket_, buffer->data(), buffer->size(), 0);
    if (size < 0) return errno == EAGAIN || errno == EINTR;
    return size > 0 && nghttp2_session_mem_recv(session_, buffer->data(), static_cast<std::size_t>(size)) == size;
  }

  // Sends until there is nothing more or the socket takes no more; false once the client is gone.
  bool send() {
    while (true) {
      if (sent_ == out_.size() && !fill()) return blocked_ = false, true;
      const ssize_t size = ::send(socket_, out_.data() + sent_, out_.size() - sent_, MSG_NOSIGNAL);
      if (size < 0) return blocked_ = errno == EAGAIN, blocked_;
      sent_ += static_cast<std::size_t>(size);
    }
  }

  bool is_blocked() const { return blocked_; }
  int socket() const { return socket_; }

  std::uint32_t polled = EPOLLIN;  // what epoll looks for

 private:
  static const nghttp2_session_callbacks* callbacks() {
    static const nghttp2_session_callbacks* const made = [] {
      nghttp2_session_callbacks* callbacks = nullptr;
      nghttp2_session_callbacks_new(&callbacks);
      nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks, on_begin_headers);
      nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data);
      nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, on_frame);
      nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_stream_close);
      return callbacks;
    }();
    return made;
  }

  static Stream* stream_of(nghttp2_session* session, std::int32_t id) {
    return static_cast<Stream*>(nghttp2_session_get_stream_user_data(session, id));
  }

  static int on_begin_headers(nghttp2_session* session, const nghttp2_frame* frame, void* self) {
    if (frame->headers.cat != NGHTTP2_HCAT_REQUEST) return 0;
    auto* const stream = new Stream;
    static_cast<Connection*>(self)->streams_.push_back(stream);
    nghttp2_session_set_stream_user_data(session, frame->hd.stream_id, stream);
    return 0;
  }

  static int on_data(nghttp2_session* session, std::uint8_t, std::int32_t id, const std::uint8_t* data,
                     std::size_t size, void*) {
    std::string& body = stream_of(session, id)->body;
    if (body.empty() && size >= kPrefixBytes) body.reserve(kPrefixBytes + message_bytes(data));
    body.append(reinterpret_cast<const char*>(data), size);
    return 0;
  }

  static int on_frame(nghttp2_session* session, const nghttp2_frame* frame, void* self) {
    const bool is_last = (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0;
    if (!is_last || (frame->hd.type != NGHTTP2_DATA && frame->hd.type != NGHTTP2_HEADERS)) return 0;
    auto& connection = *static_cast<Connection*>(self);
    Stream* const stream = stream_of(session, frame->hd.stream_id);
    if (connection.fixed_reply_ != nullptr) stream->body = *connection.fixed_reply_;
    ++*connection.served_;
    const nghttp2_data_provider body{{.ptr = stream}, on_body_wanted};
    return nghttp2_submit_response(session, frame->hd.stream_id, kHead.data(), kHead.size(), &body);
  }

  static ssize_t on_body_wanted(nghttp2_session* session, std::int32_t id, std::uint8_t* buffer, std::size_t size,
                                std::uint32_t* flags, nghttp2_data_source* source, void*) {
    auto& stream = *static_cast<Stream*>(source->ptr);
    size = std::min(size, stream.body.size() - stream.sent);
    std::memcpy(buffer, stream.body.data() + stream.sent, size);
    stream.sent += size;
    if (stream.sent == stream.body.size()) {
      *flags |= NGHTTP2_DATA_FLAG_EOF | NGHTTP2_DATA_FLAG_NO_END_STREAM;
      nghttp2_submit_trailer(session, id, kTrailers.data(), kTrailers.size());
    }
    return static_cast<ssize_t>(size);
  }

  static int on_stream_close(nghttp2_session* session, std::int32_t id, std::uint32_t, void* self) {
    Stream* const stream = stream_of(session, id);
    if (stream == nullptr) return 0;
    auto& streams = static_cast<Connection*>(self)->streams_;
    *std::find(streams.begin(), streams.end(), stream) = streams.back();
    streams.pop_back();
    delete stream;
    return 0;
  }

  bool fill() {
    out_.clear();
    sent_ = 0;
    const std::uint8_t* data = nullptr;
    ssize_t size = 0;
    while (out_.size() < kSendBytes && (size = nghttp2_session_mem_send(session_, &data)) > 0)
      out_.append(reinterpret_cast<const char*>(data), static_cast<std::size_t>(size));
    return !out_.empty();
  }

  const int socket_;
  const std::string* const fixed_reply_;  // with its prefix; null: what came
  std::uint64_t* const served_;
  nghttp2_session* session_ = nullptr;
  std::vector<Stream*> streams_;
  std::string out_;
  std::size_t sent_ = 0;
  bool blocked_ = false;
};

// A message of so many zeros, with its prefix.
std::string zeros(std::size_t bytes) {
  std::string message(kPrefixBytes + bytes, '\0');
  for (std::size_t i = 1; i < kPrefixBytes; ++i)
    message[i] = static_cast<char>(bytes >> (8 * (kPrefixBytes - 1 - i)) & 0xFF);
  return message;
}

int listen_on_free_port() {
  const int listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
  socklen_t size = sizeof address;
  if (listener < 0 || ::bind(listener, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      ::listen(listener, SOMAXCONN) != 0 ||
      ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    std::perror("cannot listen");
    std::exit(1);
  }
  echo::say_listening(ntohs(address.sin_port));
  return listener;
}

}  // namespace

int main(int argc, char** argv) {
  const echo::Options options = echo::parse(argc, argv);
  const std::string reply = options.reply_bytes ? zeros(*options.reply_bytes) : std::string();
  const sigset_t signals = echo::block_stop_signals();
  const int stopped = ::signalfd(-1, &signals, SFD_CLOEXEC);
  const int poller = ::epoll_create1(EPOLL_CLOEXEC);
  const int listener = listen_on_free_port();
  for (const int fd : {stopped, listener}) {
    epoll_event readable{.events = EPOLLIN, .data = {.fd = fd}};
    ::epoll_ctl(poller, EPOLL_CTL_ADD, fd, &readable);
  }

  std::uint64_t served = 0;
  std::vector<std::unique_ptr<Connection>> connections;  // by socket
  const auto buffer = std::make_unique<std::array<std::uint8_t, kReceiveBytes>>();
  for (bool serving = true; serving;) {
    epoll_event events[kEventsPerTurn];
    const int count = ::epoll_wait(poller, events, kEventsPerTurn, -1);
    for (int i = 0; i < count; ++i) {
      const int fd = events[i].data.fd;
      if (fd == stopped) {
        serving = false;
      } else if (fd == listener) {
        const int socket = ::accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (socket < 0) continue;
        const int on = 1;
        ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        if (connections.size() <= static_cast<std::size_t>(socket)) connections.resize(socket + 1);
        connections[socket] = std::make_unique<Connection>(socket, options.reply_bytes ? &reply : nullptr, &served);
        epoll_event readable{.events = EPOLLIN, .data = {.fd = socket}};
        ::epoll_ctl(poller, EPOLL_CTL_ADD, socket, &readable);
      } else {
        std::unique_ptr<Connection>& connection = connections[fd];
        const bool may_read = (events[i].events & ~EPOLLOUT) != 0;
        if ((may_read && !connection->receive(buffer.get())) || !connection->send()) {
          connection.reset();  // which takes it out of the poller
          continue;
        }
        const std::uint32_t wanted = EPOLLIN | (connection->is_blocked() ? EPOLLOUT : 0u);
        if (wanted == connection->polled) continue;
        connection->polled = wanted;
        epoll_event event{.events = wanted, .data = {.fd = fd}};
        ::epoll_ctl(poller, EPOLL_CTL_MOD, fd, &event);
      }
    }
  }
  echo::say_served(served);
  return 0;
}
