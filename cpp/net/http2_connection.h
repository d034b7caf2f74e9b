// SPDX-License-Identifier: Apache-2.0
//
// Http2Connection: one client's stream of bytes, its HTTP/2 session, and the calls on it.
//
// Thread safety: the thread of its loop.
// Ownership: belongs to its loop; its calls, which it releases, to the loop's table.
// Progress: never blocks.  What a client does not read stays here: at most a buffer, and the answers of its calls.
// Invariant: each call is answered once: by reply(), by answer() or by fail(); or its client has gone.

#pragma once

#include <nghttp2/nghttp2.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "net/byte_stream.h"
#include "net/call.h"
#include "net/response_writer.h"

namespace headrace {

class ServerLoop;

class Http2Connection {
 public:
  Http2Connection(ServerLoop& loop, std::unique_ptr<ByteStream> stream);
  ~Http2Connection();
  Http2Connection(const Http2Connection&) = delete;
  Http2Connection& operator=(const Http2Connection&) = delete;

  int fd() const { return stream_->fd(); }

  // Stage 1.  Takes in what the stream has, at most a buffer full.
  void receive(std::span<std::byte> buffer);
  // Stage 8.  Sends what the stream takes.  Whether it is to be called again before the loop sleeps.
  bool send();

  // Stage 2: a message that the codec pool has inflated; `now_ns` is when it came.
  void inflated(Call& call, Status status, const MessagePtr& message, std::int64_t now_ns);

  // Stage 8: the response of a request that was answered.
  void reply(Call& call);
  // Stage 8: a response that the codec pool has deflated.
  void deflated(Call& call, const Status& status, std::string response);
  // The answer of a handler or the health table: a message, or the end.
  void answer(Call& call, const Status& status, std::string response);

  // Tells the client to make no more calls here.
  void announce_shutdown();
  // Answers what is under way, and closes once that is sent.
  void end();
  // Ends what took too long.  When it is to be called again at the latest, unless something begins.
  std::int64_t serve_time();
  // Sends no more.
  void hang_up() { stream_->end(); }

  bool is_closed() const { return closed_; }
  bool wants_to_receive() const;
  bool wants_to_send() const { return stream_->wants_room(); }
  // receive() has to go on once the socket takes more.
  bool receives_by_sending() const { return stream_->receive_wants_room(); }
  // Whether the client has got as far as HTTP/2; a TLS handshake comes before it.
  bool is_established() const { return stream_->is_established(); }

  std::uint32_t polled = 0;  // what the loop polls it for
  bool to_be_sent = false;   // it is in the loop's list
  std::size_t position = 0;  // among the loop's connections

  static const nghttp2_session_callbacks* callbacks();

 private:
  // What nghttp2 calls; the last parameter is the connection.
  static int on_begin_headers(nghttp2_session*, const nghttp2_frame* frame, void* self);
  static int on_header(nghttp2_session*, const nghttp2_frame* frame, const std::uint8_t* name, std::size_t name_size,
                       const std::uint8_t* value, std::size_t value_size, std::uint8_t, void* self);
  static int on_frame(nghttp2_session*, const nghttp2_frame* frame, void* self);
  static int on_data(nghttp2_session*, std::uint8_t, std::int32_t stream, const std::uint8_t* data, std::size_t size,
                     void* self);
  static int on_stream_close(nghttp2_session*, std::int32_t stream, std::uint32_t, void* self);
  static int on_frame_sent(nghttp2_session*, const nghttp2_frame* frame, void* self);
  static ssize_t on_body_wanted(nghttp2_session*, std::int32_t, std::uint8_t*, std::size_t size, std::uint32_t* flags,
                                nghttp2_data_source* source, void* self);
  static int on_body(nghttp2_session*, nghttp2_frame*, const std::uint8_t* frame_head, std::size_t size,
                     nghttp2_data_source* source, void* self);

  Call* call_of(std::int32_t stream);
  void head_received(Call& call);
  Status admit(Call& call);
  void read(Call& call, std::span<const std::byte> data);
  void keep_backlog(Call& call, std::span<const std::byte> data);
  void read_backlog(Call& call);
  void received_all(Call& call);
  void reset_received();
  void fail(Call& call, const Status& status);
  void finish(Call& call);
  void give_up(Call& call);
  void waits_no_more(Call& call);
  void release(Call& call);

  bool fill();
  void terminate(std::uint32_t error);

  // What serve_time() looks at.
  class Due;
  void close_at_once();
  bool is_stuck(Due& due);
  void serve_calls(Due& due);
  void serve_age(Due& due);
  void serve_pings(Due& due);

  ServerLoop& loop_;
  const std::unique_ptr<ByteStream> stream_;
  ResponseWriter writer_;
  nghttp2_session* session_ = nullptr;
  std::vector<Call*> calls_;
  Call* last_ = nullptr;  // whose frame came last

  std::string out_;       // what nghttp2 has given to be sent
  std::size_t sent_ = 0;  // of it
  bool blocked_ = false;  // the stream takes no more
  bool closing_ = false;  // closes once everything is sent
  bool closed_ = false;   // to be let go of by the loop

  const std::int64_t opened_ns_;
  std::int64_t idle_since_ns_;
  std::int64_t heard_ns_;          // when the last frame came
  std::int64_t pinged_ns_ = 0;     // when it was last asked whether it is there
  std::int64_t moved_ns_;          // when the socket was last seen to take something
  std::size_t sent_before_ = 0;    // what was sent before out_
  std::size_t sent_seen_ = 0;      // of all that is sent, at moved_ns_
  bool greeted_ = false;           // the client's SETTINGS came
  bool ending_ = false;            // end() was called
  std::int64_t told_ns_ = kNever;  // when the client was told to go elsewhere for the connection's age
  bool last_calls_told_ = false;   // and which calls are its last

  double resets_allowed_;
  std::int64_t resets_counted_at_ns_ = 0;
};

}  // namespace headrace
