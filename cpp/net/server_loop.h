// SPDX-License-Identifier: Apache-2.0
//
// ServerLoop: a thread that serves the connections which belong to it.
//
// Thread safety: open() before start(); wake() and adopt() from any thread; the rest by the loop's own thread.
// Ownership: owns its connections and their calls; the group outlives it.
// Progress: blocks only in its poll, and not at all while something is to be done.

#pragma once

#include <nghttp2/nghttp2.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "core/status.h"
#include "net/call.h"
#include "net/descriptor.h"
#include "net/dispatcher.h"
#include "net/http2_connection.h"
#include "net/listener.h"
#include "net/loop_group.h"
#include "net/reply_inbox.h"

namespace headrace {

class ServerLoop {
 public:
  explicit ServerLoop(LoopGroup& group);
  ~ServerLoop();
  ServerLoop(const ServerLoop&) = delete;
  ServerLoop& operator=(const ServerLoop&) = delete;

  // Gets what it needs of the system.
  Status open();
  // Runs the thread; with listeners it also accepts connections, for itself and for `peers` in turn.
  void start(std::vector<Listener> listeners, std::vector<ServerLoop*> peers);
  // Waits for the thread, which ends in phase kEnding.
  void join();

  void wake() { inbox_->wake(); }
  void adopt(Descriptor socket) { inbox_->adopt(std::move(socket)); }

  // For its connections.
  LoopGroup& group() { return group_; }
  CallTable& calls() { return calls_; }
  Dispatcher& dispatcher() { return *dispatcher_; }
  const std::shared_ptr<ReplyInbox>& inbox() const { return inbox_; }
  const nghttp2_option* http2_options() const { return http2_options_; }
  std::int64_t now_ns() const { return now_ns_; }  // when this turn began
  void send_later(Http2Connection& connection);
  void call_waits() { ++calls_waiting_; }
  void call_waits_no_more() { --calls_waiting_; }

 private:
  void run();
  void turn();
  int poll_wait_ms();
  bool is_listener(const void* source) const;
  void poll_listeners();
  void accept(const Listener& listener);
  void stop_accepting_for_now();
  void add_connection(Descriptor socket);
  void take_inbox();
  void follow_phase();
  void send();
  void poll_for(Http2Connection& connection);
  void stop_polling(int fd);
  void close(Http2Connection& connection);
  void serve_time();

  LoopGroup& group_;
  Descriptor poller_;
  std::shared_ptr<ReplyInbox> inbox_;
  std::unique_ptr<Dispatcher> dispatcher_;
  nghttp2_option* http2_options_ = nullptr;
  std::thread thread_;

  std::vector<Listener> listeners_;
  std::vector<ServerLoop*> peers_;
  std::size_t next_peer_ = 0;
  std::int64_t accept_again_ns_ = kNever;  // where there was no room for a connection

  CallTable calls_;
  std::size_t calls_waiting_ = 0;  // for answers
  std::vector<std::unique_ptr<Http2Connection>> connections_;
  std::vector<Http2Connection*> to_send_;
  std::vector<Http2Connection*> sending_;  // what to_send_ was when sending began
  std::vector<std::byte> buffer_;
  ReplyInbox::Taken taken_;
  std::int64_t now_ns_ = 0;
  std::int64_t shortest_wait_ns_ = kNever;               // of those that connections may take
  std::int64_t check_ns_ = kNever;                       // when connections are to be looked at
  LoopGroup::Phase phase_ = LoopGroup::Phase::kServing;  // that it has followed
  bool drained_ = false;                                 // and said so
};

}  // namespace headrace
