// SPDX-License-Identifier: Apache-2.0
//
// How a connection ends, and what on it does, where the client does not see to that: the server stops, or it took too
// long.

#include <algorithm>
#include <random>
#include <string>

#include "core/clock.h"
#include "net/http2_connection.h"
#include "net/server_loop.h"

namespace headrace {
namespace {

// What a client has begun before it hears that it is to go elsewhere comes within this, and is served.
constexpr std::int64_t kLastCallsNs = 200'000'000;

// How much earlier or later than at its age a connection ends, so that those that began together do not end together.
constexpr double kAgeSpread = 0.1;

std::string seconds_text(std::int64_t ns) {
  std::string text = std::to_string(static_cast<double>(ns) * 1e-9);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.back() == '.') text.pop_back();
  return text + " s";
}

}  // namespace

// ---- The server stops -----------------------------------------------------------------------------------------------

void Http2Connection::announce_shutdown() {
  nghttp2_submit_shutdown_notice(session_);
  loop_.send_later(*this);
}

void Http2Connection::end() {
  if (!is_established()) return close_at_once();
  for (Call* call : calls_) {
    if (call->state == Call::State::kAnswered || call->state == Call::State::kHead) continue;
    if (call->head.method().is_stream())
      finish(*call);
    else
      fail(*call, Unavailable(call->state == Call::State::kWaiting ? "the server stopped before there was an answer"
                                                                   : "the server is stopping"));
  }
  ending_ = true;
  nghttp2_submit_goaway(session_, NGHTTP2_FLAG_NONE, nghttp2_session_get_last_proc_stream_id(session_),
                        NGHTTP2_NO_ERROR, nullptr, 0);
  loop_.send_later(*this);
}

// ---- It took too long -----------------------------------------------------------------------------------------------

// Tells what is due from what is to be looked at later, and when.
class Http2Connection::Due {
 public:
  explicit Due(std::int64_t now_ns) : now_ns_(now_ns) {}

  std::int64_t now_ns() const { return now_ns_; }
  std::int64_t next_ns() const { return next_ns_; }

  // Whether `wait_ns`, unless that is 0, have passed since then.
  bool is(std::int64_t since_ns, std::int64_t wait_ns) {
    if (wait_ns == 0) return false;
    const std::int64_t due_ns = after_ns(since_ns, wait_ns);
    if (due_ns <= now_ns_) return true;
    next_ns_ = std::min(next_ns_, due_ns);
    return false;
  }

 private:
  const std::int64_t now_ns_;
  std::int64_t next_ns_ = kNever;
};

std::int64_t Http2Connection::serve_time() {
  const GrpcServerOptions& options = loop_.group().options;
  Due due(loop_.now_ns());
  if ((!greeted_ && due.is(opened_ns_, options.request_ns)) || is_stuck(due)) {
    close_at_once();
    return kNever;
  }
  if (closing_) return due.next_ns();
  serve_calls(due);
  if (calls_.empty() && !ending_ && due.is(idle_since_ns_, options.idle_ns)) end();
  serve_age(due);
  serve_pings(due);
  return due.next_ns();
}

void Http2Connection::close_at_once() {
  closed_ = true;
  loop_.send_later(*this);
}

// Whether the socket takes nothing of what there is to send.
bool Http2Connection::is_stuck(Due& due) {
  const std::size_t sent = sent_before_ + sent_;
  if (!blocked_ || sent != sent_seen_) {
    sent_seen_ = sent;
    moved_ns_ = due.now_ns();
  }
  return blocked_ && due.is(moved_ns_, loop_.group().options.request_ns);
}

// Requests that do not come in, and replies whose flow-control window does not open.
void Http2Connection::serve_calls(Due& due) {
  const std::int64_t wait_ns = loop_.group().options.request_ns;
  for (Call* call : calls_) {
    if (call->state == Call::State::kHead) {
      // In the middle of a header block a client can send nothing else, and so nothing of its other calls.
      if (due.is(call->since_ns, wait_ns)) return terminate(NGHTTP2_ENHANCE_YOUR_CALM);
    } else if (call->state == Call::State::kReceiving) {
      // A stream may pause between its messages.
      const bool awaited = !call->responding || call->reader.in_message();
      if (awaited && due.is(call->since_ns, wait_ns))
        fail(*call, {Code::kDeadlineExceeded, "the request had not come in whole " + seconds_text(wait_ns) +
                                                  " after it began (--grpc_request_seconds)"});
    } else if (call->sending.left != 0) {
      if (call->sending.left != call->left_seen) {
        call->left_seen = call->sending.left;
        call->since_ns = due.now_ns();
      }
      if (!due.is(call->since_ns, wait_ns)) continue;
      nghttp2_submit_rst_stream(session_, NGHTTP2_FLAG_NONE, call->stream, NGHTTP2_CANCEL);
      loop_.send_later(*this);
    }
  }
}

// First the client is told to make no more calls here, then which were the last that are served; once those are
// answered, HTTP/2 has nothing more to do here.
void Http2Connection::serve_age(Due& due) {
  const GrpcServerOptions& options = loop_.group().options;
  if (options.age_ns == 0 || ending_) return;
  if (told_ns_ == kNever) {
    std::minstd_rand random(static_cast<std::uint32_t>(opened_ns_ / 1000));
    const double spread = std::uniform_real_distribution(1 - kAgeSpread, 1 + kAgeSpread)(random);
    if (!due.is(opened_ns_, static_cast<std::int64_t>(static_cast<double>(options.age_ns) * spread))) return;
    told_ns_ = due.now_ns();
    announce_shutdown();
  }
  if (!last_calls_told_ && due.is(told_ns_, kLastCallsNs)) {
    last_calls_told_ = true;
    nghttp2_submit_goaway(session_, NGHTTP2_FLAG_NONE, nghttp2_session_get_last_proc_stream_id(session_),
                          NGHTTP2_NO_ERROR, nullptr, 0);
    loop_.send_later(*this);
  }
  if (due.is(told_ns_, options.age_grace_ns)) terminate(NGHTTP2_NO_ERROR);
}

void Http2Connection::serve_pings(Due& due) {
  const GrpcServerOptions& options = loop_.group().options;
  if (pinged_ns_ > heard_ns_) {
    if (due.is(pinged_ns_, options.ping_answer_ns)) close_at_once();
  } else if (due.is(heard_ns_, options.ping_ns)) {
    pinged_ns_ = due.now_ns();
    nghttp2_submit_ping(session_, NGHTTP2_FLAG_NONE, nullptr);
    loop_.send_later(*this);
    due.is(pinged_ns_, options.ping_answer_ns);
  }
}

}  // namespace headrace
