// SPDX-License-Identifier: Apache-2.0
//
// Stages 1 and 8 of 8: what is readable is received, what was answered is sent; in each turn, once for all of it.

#include "net/server_loop.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

namespace headrace {
namespace {

constexpr std::size_t kReceiveBytes = 256 << 10;
static_assert(kReceiveBytes >= ByteStream::kReceiveBytesMin);
constexpr int kEventsPerTurn = 256;
constexpr int kAcceptsPerTurn = 64;

// Buffers full of what a client still sends when its connection is closed; who sends faster has it reset.
constexpr int kReadsAtClose = 16;

// How long nobody is accepted when the system has no room for a connection.
constexpr std::int64_t kAcceptAgainNs = 100'000'000;

// How often connections are looked at, at most, in the shortest of the times that they may take.
constexpr std::int64_t kChecksPerWait = 16;

constexpr std::int64_t kMillisecondNs = 1'000'000;

// Frames that a header block may come in, beside those that a client needs for a block of the largest size.
constexpr std::size_t kContinuationsMax = 8;
constexpr std::size_t kHeaderFrameBytes = 16 << 10;

}  // namespace

ServerLoop::ServerLoop(LoopGroup& group) : group_(group), buffer_(kReceiveBytes) {
  const GrpcServerOptions& options = group.options;
  for (const std::int64_t wait_ns : {options.request_ns, options.idle_ns, options.age_ns, options.ping_ns})
    if (wait_ns > 0) shortest_wait_ns_ = std::min(shortest_wait_ns_, wait_ns);
  nghttp2_option_new(&http2_options_);
  nghttp2_option_set_no_auto_window_update(http2_options_, 1);
  nghttp2_option_set_no_closed_streams(http2_options_, 1);
  nghttp2_option_set_max_continuations(http2_options_,
                                       kContinuationsMax + options.header_bytes_max / kHeaderFrameBytes);
  // The connection counts resets itself.
  nghttp2_option_set_stream_reset_rate_limit(http2_options_, std::numeric_limits<std::uint32_t>::max(),
                                             std::numeric_limits<std::uint32_t>::max());
}

ServerLoop::~ServerLoop() {
  join();
  connections_.clear();
  if (inbox_ != nullptr) {
    inbox_->take(&taken_);
    group_.connections -= taken_.sockets.size();  // nobody has taken them up
    inbox_->close();
  }
  nghttp2_option_del(http2_options_);
}

Status ServerLoop::open() {
  poller_ = Descriptor(::epoll_create1(EPOLL_CLOEXEC));
  Descriptor event(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!poller_ || !event) return ResourceExhausted(std::string("no file descriptor for a loop: ") + strerror(errno));
  inbox_ = std::make_shared<ReplyInbox>(std::move(event));
  dispatcher_ = std::make_unique<Dispatcher>(group_, inbox_);
  epoll_event readable{.events = EPOLLIN, .data = {.ptr = inbox_.get()}};
  ::epoll_ctl(poller_.fd(), EPOLL_CTL_ADD, inbox_->fileno(), &readable);
  return {};
}

void ServerLoop::start(std::vector<Listener> listeners, std::vector<ServerLoop*> peers) {
  listeners_ = std::move(listeners);
  peers_ = std::move(peers);
  poll_listeners();
  thread_ = std::thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), "headrace-grpc");
}

void ServerLoop::join() {
  if (thread_.joinable()) thread_.join();
}

void ServerLoop::run() {
  sigset_t signals;  // the process's signals are the main thread's
  sigfillset(&signals);
  pthread_sigmask(SIG_SETMASK, &signals, nullptr);
  check_ns_ = after_ns(group_.clock.now_ns(), shortest_wait_ns_);
  while (phase_ != LoopGroup::Phase::kEnding || !connections_.empty()) turn();
}

void ServerLoop::turn() {
  const bool may_sleep = to_send_.empty() && inbox_->try_sleep();
  epoll_event events[kEventsPerTurn];
  const int count = ::epoll_wait(poller_.fd(), events, kEventsPerTurn, may_sleep ? poll_wait_ms() : 0);
  if (may_sleep) inbox_->slept();
  now_ns_ = group_.clock.now_ns();
  for (int i = 0; i < count; ++i) {
    void* const source = events[i].data.ptr;
    if (source == inbox_.get()) continue;  // it is looked into in every turn
    if (is_listener(source)) {
      accept(*static_cast<const Listener*>(source));
      continue;
    }
    auto& connection = *static_cast<Http2Connection*>(source);
    if ((events[i].events & EPOLLOUT) != 0) send_later(connection);
    if ((events[i].events & ~EPOLLOUT) != 0 || connection.receives_by_sending()) connection.receive(buffer_);
    if (connection.is_closed()) send_later(connection);
  }
  dispatcher_->announce();
  take_inbox();
  follow_phase();
  send();
  serve_time();
  if (phase_ >= LoopGroup::Phase::kDraining && calls_waiting_ == 0 && !std::exchange(drained_, true))
    group_.loop_drained();
}

// How long the poll may last, in milliseconds, until something is due by time; -1: for ever.
int ServerLoop::poll_wait_ms() {
  std::int64_t due_ns = std::min(accept_again_ns_, check_ns_);
  if (phase_ == LoopGroup::Phase::kEnding) due_ns = std::min(due_ns, group_.close_at_ns.load());
  if (due_ns == kNever) return -1;
  const std::int64_t wait_ns = std::max<std::int64_t>(0, due_ns - group_.clock.now_ns());
  return static_cast<int>(std::min<std::int64_t>((wait_ns + kMillisecondNs - 1) / kMillisecondNs, 1'000'000));
}

// ---- Stage 1: receive -----------------------------------------------------------------------------------------------

bool ServerLoop::is_listener(const void* source) const {
  return std::any_of(listeners_.begin(), listeners_.end(), [&](const Listener& each) { return &each == source; });
}

void ServerLoop::poll_listeners() {
  for (Listener& listener : listeners_) {
    epoll_event readable{.events = EPOLLIN, .data = {.ptr = &listener}};
    ::epoll_ctl(poller_.fd(), EPOLL_CTL_ADD, listener.fd(), &readable);
  }
}

void ServerLoop::accept(const Listener& listener) {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    Descriptor socket(::accept4(listener.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) stop_accepting_for_now();
      return;
    }
    if (group_.connections.fetch_add(1) >= group_.options.connections_max) {
      --group_.connections;  // one too many: it is closed at once
      continue;
    }
    const int on = 1;
    ::setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    ServerLoop* const peer = peers_[next_peer_++ % peers_.size()];
    if (peer == this)
      add_connection(std::move(socket));
    else
      peer->adopt(std::move(socket));
  }
}

void ServerLoop::stop_accepting_for_now() {
  for (const Listener& listener : listeners_) stop_polling(listener.fd());
  accept_again_ns_ = after_ns(now_ns_, kAcceptAgainNs);
}

void ServerLoop::add_connection(Descriptor socket) {
  if (phase_ == LoopGroup::Phase::kEnding) {
    ::shutdown(socket.fd(), SHUT_RDWR);
    --group_.connections;
    return;
  }
  auto& connection =
      *connections_.emplace_back(std::make_unique<Http2Connection>(*this, group_.stream_on(std::move(socket))));
  connection.position = connections_.size() - 1;
  connection.polled = EPOLLIN;
  epoll_event readable{.events = EPOLLIN, .data = {.ptr = &connection}};
  ::epoll_ctl(poller_.fd(), EPOLL_CTL_ADD, connection.fd(), &readable);
  if (phase_ == LoopGroup::Phase::kDraining && !connection.is_closed()) connection.announce_shutdown();
  send_later(connection);
}

// ---- Stage 8: send --------------------------------------------------------------------------------------------------

void ServerLoop::take_inbox() {
  inbox_->take(&taken_);
  for (const RequestPtr& reply : taken_.replies) {
    Call* call = calls_.find(reply->token);
    if (call != nullptr && call->state == Call::State::kWaiting && call->request == reply)
      call->connection->reply(*call);
  }
  for (ReplyInbox::Answer& answer : taken_.answers) {
    Call* call = calls_.find(answer.token);
    if (call != nullptr && call->state == Call::State::kWaiting)
      call->connection->answer(*call, answer.status, std::move(answer.response));
  }
  for (ReplyInbox::Resumption& resumption : taken_.resumptions) {
    Call* call = calls_.find(resumption.token);
    if (call != nullptr && call->state == Call::State::kWaiting) resumption.then(*call);
  }
  for (Descriptor& socket : taken_.sockets) add_connection(std::move(socket));
  taken_.replies.clear();
  taken_.answers.clear();
  taken_.resumptions.clear();
  taken_.sockets.clear();
}

void ServerLoop::send_later(Http2Connection& connection) {
  if (!std::exchange(connection.to_be_sent, true)) to_send_.push_back(&connection);
}

void ServerLoop::send() {
  sending_.swap(to_send_);
  for (Http2Connection* connection : sending_) {
    connection->to_be_sent = false;
    const bool again = connection->send();
    if (connection->is_closed()) {
      close(*connection);
      continue;
    }
    if (again) send_later(*connection);
    poll_for(*connection);
  }
  sending_.clear();
}

void ServerLoop::poll_for(Http2Connection& connection) {
  const std::uint32_t wanted =
      (connection.wants_to_receive() ? EPOLLIN : 0u) | (connection.wants_to_send() ? EPOLLOUT : 0u);
  if (wanted == connection.polled) return;
  connection.polled = wanted;
  epoll_event event{.events = wanted, .data = {.ptr = &connection}};
  ::epoll_ctl(poller_.fd(), EPOLL_CTL_MOD, connection.fd(), &event);
}

// Before a descriptor is closed: a process that was forked off still has it, and would keep its events coming.
void ServerLoop::stop_polling(int fd) { ::epoll_ctl(poller_.fd(), EPOLL_CTL_DEL, fd, nullptr); }

void ServerLoop::close(Http2Connection& connection) {
  // What was sent reaches the client even if it is still sending: closing over unread bytes would reset the connection.
  connection.hang_up();
  for (int reads = 0; reads < kReadsAtClose; ++reads)
    if (::recv(connection.fd(), buffer_.data(), buffer_.size(), MSG_DONTWAIT) != static_cast<ssize_t>(buffer_.size()))
      break;
  stop_polling(connection.fd());
  if (std::exchange(connection.to_be_sent, false)) std::erase(to_send_, &connection);
  const std::size_t position = connection.position;
  std::swap(connections_[position], connections_.back());
  connections_[position]->position = position;
  connections_.pop_back();
  --group_.connections;
}

// What is due by time.
void ServerLoop::serve_time() {
  if (accept_again_ns_ <= now_ns_) {
    accept_again_ns_ = kNever;
    poll_listeners();
  }
  if (check_ns_ > now_ns_) return;
  check_ns_ = after_ns(now_ns_, shortest_wait_ns_);  // what begins from now on is not due before
  for (const auto& connection : connections_) check_ns_ = std::min(check_ns_, connection->serve_time());
  check_ns_ = std::max(check_ns_, after_ns(now_ns_, shortest_wait_ns_ / kChecksPerWait));
}

// ---- Stopping -------------------------------------------------------------------------------------------------------

void ServerLoop::follow_phase() {
  const LoopGroup::Phase phase = group_.phase.load();
  if (phase >= LoopGroup::Phase::kDraining && phase_ < LoopGroup::Phase::kDraining) {
    for (const Listener& listener : listeners_) stop_polling(listener.fd());
    listeners_.clear();
    for (const auto& connection : connections_) connection->announce_shutdown();
  }
  if (phase == LoopGroup::Phase::kEnding && phase_ != LoopGroup::Phase::kEnding) {
    if (calls_waiting_ != 0) group_.was_late = true;
    for (const auto& connection : connections_) connection->end();
  }
  phase_ = phase;
  if (phase_ != LoopGroup::Phase::kEnding || now_ns_ < group_.close_at_ns.load()) return;
  while (!connections_.empty()) close(*connections_.back());
}

}  // namespace headrace
