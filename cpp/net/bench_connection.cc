// SPDX-License-Identifier: Apache-2.0

#include "net/bench_connection.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <new>
#include <utility>

#include "core/clock.h"

namespace headrace {

namespace {

// Wide enough that no answer waits for the window of its connection.
constexpr std::int32_t kStreamWindowBytes = 16 << 20;
constexpr std::int32_t kConnectionWindowBytes = 1 << 30;

// Frames are put together to at least this before they are sent.
constexpr std::size_t kSendBytes = 64 << 10;

// A message in an error's text.
constexpr std::size_t kTextBytesMax = 1024;

nghttp2_nv header(std::string_view name, std::string_view value) {
  // nghttp2 reads them only; with these flags it does not copy them either.
  const auto bytes = [](std::string_view text) {
    return const_cast<std::uint8_t*>(reinterpret_cast<const std::uint8_t*>(text.data()));
  };
  constexpr std::uint8_t flags = NGHTTP2_NV_FLAG_NO_COPY_NAME | NGHTTP2_NV_FLAG_NO_COPY_VALUE;
  return {bytes(name), bytes(value), name.size(), value.size(), flags};
}

// For poll(), which would wait for ever rather than no time at all.
int milliseconds(std::int64_t ns) { return static_cast<int>(std::max<std::int64_t>(0, (ns + 999'999) / 1'000'000)); }

// As all that a server says must; a frame's type stands behind the three bytes of its length.
bool begins_with_settings(std::span<const std::byte> bytes) {
  constexpr std::size_t kTypeAt = 3;
  return bytes.size() <= kTypeAt || bytes[kTypeAt] == std::byte{NGHTTP2_SETTINGS};
}

int number_in(std::string_view text) {
  int number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? number : -1;
}

// What gRPC makes of an answer that has no grpc-status (http-grpc-status-mapping.md).
Code code_of_http(int status) {
  switch (status) {
    case 400:
      return Code::kInternal;
    case 401:
      return Code::kUnauthenticated;
    case 403:
      return Code::kPermissionDenied;
    case 404:
      return Code::kUnimplemented;
    case 429:
    case 502:
    case 503:
    case 504:
      return Code::kUnavailable;
    default:
      return Code::kUnknown;
  }
}

// The same for a stream that was reset (PROTOCOL-HTTP2.md).
Code code_of_reset(std::uint32_t error) {
  switch (error) {
    case NGHTTP2_REFUSED_STREAM:
      return Code::kUnavailable;
    case NGHTTP2_CANCEL:
      return Code::kCancelled;
    case NGHTTP2_ENHANCE_YOUR_CALM:
      return Code::kResourceExhausted;
    case NGHTTP2_INADEQUATE_SECURITY:
      return Code::kPermissionDenied;
    default:
      return Code::kInternal;
  }
}

}  // namespace

BenchConnection::BenchConnection(const BenchTarget& target, BenchListener& listener)
    : target_(target), listener_(listener), authority_(target.address()) {
  headers_ = {header(":method", "POST"),
              header(":scheme", "http"),
              header(":path", target_.path),
              header(":authority", authority_),
              header("te", "trailers"),
              header("content-type", "application/grpc"),
              header("user-agent", "headrace-bench")};
  if (!target_.timeout.empty()) headers_.push_back(header("grpc-timeout", target_.timeout));
}

BenchConnection::~BenchConnection() {
  nghttp2_session_del(session_);
  if (fd_ >= 0) ::close(fd_);
}

Status BenchConnection::open(std::int64_t limit_ns) {
  assert(fd_ < 0 && in_flight_ == 0);
  if (Status status = connect_socket(limit_ns); !status.ok()) return status;

  nghttp2_session_callbacks* callbacks = nullptr;
  if (nghttp2_session_callbacks_new(&callbacks) != 0) throw std::bad_alloc();
  nghttp2_session_callbacks_set_on_header_callback(callbacks, on_header);
  nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data);
  nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, on_frame);
  nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_closed);
  const int made = nghttp2_session_client_new(&session_, callbacks, this);
  nghttp2_session_callbacks_del(callbacks);
  if (made != 0) throw std::bad_alloc();

  const nghttp2_settings_entry settings[] = {{NGHTTP2_SETTINGS_ENABLE_PUSH, 0},
                                             {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, kStreamWindowBytes}};
  nghttp2_submit_settings(session_, NGHTTP2_FLAG_NONE, settings, std::size(settings));
  nghttp2_session_set_local_window_size(session_, NGHTTP2_FLAG_NONE, 0, kConnectionWindowBytes);
  if (Status status = send(); !status.ok()) return status;
  return wait_for_greeting(after_ns(SystemClock().now_ns(), limit_ns));
}

// A call that is sent before the server has said how many it takes may be refused.
Status BenchConnection::wait_for_greeting(std::int64_t deadline_ns) {
  std::array<std::byte, 16 << 10> buffer;
  while (!greeted_) {
    const std::int64_t left_ns = std::max<std::int64_t>(0, deadline_ns - SystemClock().now_ns());
    pollfd greeting{.fd = fd_, .events = POLLIN, .revents = 0};
    const int ready = ::poll(&greeting, 1, milliseconds(left_ns));
    if (ready == 0) return Unavailable(authority_ + " took the connection and says nothing");
    if (Status status = receive(buffer); !status.ok()) return status;
  }
  return {};
}

Status BenchConnection::connect_socket(std::int64_t limit_ns) {
  const addrinfo wanted{.ai_flags = AI_ADDRCONFIG,
                        .ai_family = AF_UNSPEC,
                        .ai_socktype = SOCK_STREAM,
                        .ai_protocol = 0,
                        .ai_addrlen = 0,
                        .ai_addr = nullptr,
                        .ai_canonname = nullptr,
                        .ai_next = nullptr};
  addrinfo* found = nullptr;
  const int failed = ::getaddrinfo(target_.host.c_str(), target_.port.c_str(), &wanted, &found);
  if (failed != 0) return Unavailable("cannot find " + authority_ + ": " + ::gai_strerror(failed));
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> addresses(found, ::freeaddrinfo);

  int error = 0;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    const int fd = ::socket(each->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
      error = errno;
      continue;
    }
    error = ::connect(fd, each->ai_addr, each->ai_addrlen) == 0 ? 0 : errno;
    if (error == EINPROGRESS) {
      pollfd connecting{.fd = fd, .events = POLLOUT, .revents = 0};
      socklen_t bytes = sizeof error;
      const int ready = ::poll(&connecting, 1, milliseconds(limit_ns));
      error = ready > 0 ? 0 : ETIMEDOUT;
      if (ready > 0) ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes);
    }
    if (error == 0) {
      const int on = 1;
      ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
      fd_ = fd;
      return {};
    }
    ::close(fd);
  }
  return Unavailable("cannot connect to " + authority_ + ": " + std::strerror(error));
}

void BenchConnection::close(const Status& why) {
  nghttp2_session_del(std::exchange(session_, nullptr));
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  unsent_.clear();
  sent_ = 0;
  greeted_ = false;
  for (const auto& call : calls_) {
    if (!call->live_) continue;
    call->code = why.code();
    call->text = why.message();
    finish(*call);
  }
}

void BenchConnection::start(std::int64_t intended_ns, std::size_t message, std::string_view body) {
  if (idle_.empty()) idle_.push_back(calls_.emplace_back(std::make_unique<BenchCall>()).get());
  BenchCall& call = *idle_.back();
  idle_.pop_back();
  call.intended_ns = intended_ns;
  call.message = message;
  call.code = Code::kUnknown;
  call.text.clear();
  call.answer.clear();
  call.live_ = true;
  call.body_ = body;
  call.has_grpc_status_ = false;
  call.http_status_ = 0;
  call.received_bytes_ = 0;
  ++in_flight_;
  const nghttp2_data_provider provider{.source = {.ptr = &call}, .read_callback = on_body};
  const auto stream = nghttp2_submit_request(session_, nullptr, headers_.data(), headers_.size(), &provider, &call);
  if (stream < 0) {
    call.code = Code::kUnavailable;
    call.text = nghttp2_strerror(stream);
    finish(call);
  }
}

Status BenchConnection::send() {
  for (;;) {
    while (unsent_.size() - sent_ < kSendBytes) {
      const std::uint8_t* frames = nullptr;
      const ssize_t bytes = nghttp2_session_mem_send(session_, &frames);
      if (bytes < 0) return lost(nghttp2_strerror(static_cast<int>(bytes)));
      if (bytes == 0) break;
      unsent_.append(reinterpret_cast<const char*>(frames), static_cast<std::size_t>(bytes));
    }
    if (!wants_to_send()) return {};
    const ssize_t bytes = ::send(fd_, unsent_.data() + sent_, unsent_.size() - sent_, MSG_NOSIGNAL);
    if (bytes < 0) {
      if (errno == EINTR) continue;
      return errno == EAGAIN ? Status() : lost(std::strerror(errno));
    }
    sent_ += static_cast<std::size_t>(bytes);
    if (sent_ == unsent_.size()) {
      unsent_.clear();
      sent_ = 0;
    } else if (sent_ >= kSendBytes) {
      unsent_.erase(0, std::exchange(sent_, 0));
    }
  }
}

Status BenchConnection::receive(std::span<std::byte> buffer) {
  for (;;) {
    const ssize_t bytes = ::recv(fd_, buffer.data(), buffer.size(), 0);
    if (bytes < 0) {
      if (errno == EINTR) continue;
      return errno == EAGAIN ? Status() : lost(std::strerror(errno));
    }
    if (bytes == 0) return lost("the server closed it");
    if (!greeted_ && !begins_with_settings(buffer.first(static_cast<std::size_t>(bytes)))) {
      return lost("what answers there is not HTTP/2");
    }
    const auto taken = nghttp2_session_mem_recv(session_, reinterpret_cast<const std::uint8_t*>(buffer.data()),
                                                static_cast<std::size_t>(bytes));
    if (taken < 0) return lost(nghttp2_strerror(static_cast<int>(taken)));
    if (nghttp2_session_want_read(session_) == 0 && nghttp2_session_want_write(session_) == 0) {
      return lost("the server ended it");
    }
    if (static_cast<std::size_t>(bytes) < buffer.size()) return {};
  }
}

Status BenchConnection::lost(std::string_view why) const {
  return Unavailable("lost the connection to " + authority_ + ": " + std::string(why));
}

ssize_t BenchConnection::on_body(nghttp2_session*, std::int32_t, std::uint8_t* to, std::size_t bytes,
                                 std::uint32_t* flags, nghttp2_data_source* source, void*) {
  BenchCall& call = *static_cast<BenchCall*>(source->ptr);
  bytes = std::min(bytes, call.body_.size());
  std::memcpy(to, call.body_.data(), bytes);
  call.body_.remove_prefix(bytes);
  if (call.body_.empty()) *flags |= NGHTTP2_DATA_FLAG_EOF;
  return static_cast<ssize_t>(bytes);
}

int BenchConnection::on_header(nghttp2_session* session, const nghttp2_frame* frame, const std::uint8_t* name,
                               std::size_t name_bytes, const std::uint8_t* value, std::size_t value_bytes, std::uint8_t,
                               void*) {
  auto* call = static_cast<BenchCall*>(nghttp2_session_get_stream_user_data(session, frame->hd.stream_id));
  if (call == nullptr) return 0;
  const std::string_view key(reinterpret_cast<const char*>(name), name_bytes);
  const std::string_view text(reinterpret_cast<const char*>(value), value_bytes);
  if (key == "grpc-status") {
    const int code = number_in(text);
    call->has_grpc_status_ = true;
    call->code = code >= 0 && code <= static_cast<int>(Code::kUnauthenticated) ? Code{code} : Code::kUnknown;
  } else if (key == "grpc-message") {
    call->text = text.substr(0, kTextBytesMax);
  } else if (key == ":status") {
    call->http_status_ = number_in(text);
  }
  return 0;
}

int BenchConnection::on_data(nghttp2_session* session, std::uint8_t, std::int32_t stream, const std::uint8_t* data,
                             std::size_t bytes, void* user_data) {
  auto* call = static_cast<BenchCall*>(nghttp2_session_get_stream_user_data(session, stream));
  if (call == nullptr) return 0;
  const std::size_t prefix_left = MessagePrefix::kBytes - std::min(call->received_bytes_, MessagePrefix::kBytes);
  const std::size_t prefix_bytes = std::min(prefix_left, bytes);
  std::memcpy(call->prefix_ + (MessagePrefix::kBytes - prefix_left), data, prefix_bytes);
  call->received_bytes_ += bytes;
  if (from(user_data).target_.keep_answers) {
    call->answer.append(reinterpret_cast<const char*>(data) + prefix_bytes, bytes - prefix_bytes);
  }
  return 0;
}

int BenchConnection::on_frame(nghttp2_session*, const nghttp2_frame* frame, void* user_data) {
  if (frame->hd.type == NGHTTP2_SETTINGS && (frame->hd.flags & NGHTTP2_FLAG_ACK) == 0) from(user_data).greeted_ = true;
  return 0;
}

// Also for a call that never left, since the server said goodbye while it waited for its turn: REFUSED_STREAM.
int BenchConnection::on_closed(nghttp2_session* session, std::int32_t stream, std::uint32_t error, void* user_data) {
  auto* call = static_cast<BenchCall*>(nghttp2_session_get_stream_user_data(session, stream));
  if (call == nullptr || !call->live_) return 0;
  settle(*call, error);
  from(user_data).finish(*call);
  return 0;
}

// The code and text of a call whose stream has ended.
void BenchConnection::settle(BenchCall& call, std::uint32_t error) {
  if (!call.has_grpc_status_) {
    call.code = error != NGHTTP2_NO_ERROR ? code_of_reset(error) : code_of_http(call.http_status_);
    call.text = error != NGHTTP2_NO_ERROR
                    ? std::string("the stream was reset: ") + nghttp2_http2_strerror(error)
                    : "no grpc-status in an answer with HTTP status " + std::to_string(call.http_status_);
    return;
  }
  if (call.code != Code::kOk) return;
  const auto prefix = MessagePrefix::decode(call.prefix_);
  const bool whole = call.received_bytes_ >= MessagePrefix::kBytes && prefix && !prefix->compressed &&
                     call.received_bytes_ == MessagePrefix::kBytes + prefix->length;
  if (!whole) {
    call.code = Code::kInternal;
    call.text = "the answer is not one whole, uncompressed message";
  }
}

void BenchConnection::finish(BenchCall& call) {
  call.live_ = false;
  --in_flight_;
  listener_.on_answered(call);
  idle_.push_back(&call);
}

}  // namespace headrace
