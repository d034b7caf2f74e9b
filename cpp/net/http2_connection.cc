// SPDX-License-Identifier: Apache-2.0
//
// Stages 1 and 8 of 8: HTTP/2 frames of whole messages in, frames of responses out.

#include "net/http2_connection.h"

#include <algorithm>
#include <utility>

#include "net/server_loop.h"

namespace headrace {
namespace {

// What a client may send before it hears from us: of one call, and of all calls of a connection.
constexpr std::int32_t kStreamWindowBytes = 1 << 20;
constexpr std::int32_t kConnectionWindowBytes = 16 << 20;
constexpr std::uint32_t kFrameBytesMax = 256 << 10;

// Bytes that wait for the socket, and how often it is filled in one turn of the loop.
constexpr std::size_t kSendBytes = 256 << 10;
constexpr int kSendsPerTurn = 4;

// Frames that wait behind a socket that takes no more; beyond that nothing is received that would add to them.
constexpr std::size_t kFramesWaitingMax = 10'000;

// Calls that a client may reset: at once, and in each second.
constexpr double kResetsMax = 10'000;
constexpr double kResetsPerSecond = 2'000;

// Whether a response is better deflated elsewhere.
bool is_for_the_pool(const Call& call, std::string_view response) {
  return response.size() > CodecPool::kInlineBytesMax && call.head.reply_encoding() != Encoding::kIdentity;
}

// A header block that is so many times larger than it may be is not even read to its end.
constexpr std::size_t kHeaderExcess = 4;

}  // namespace

Http2Connection::Http2Connection(ServerLoop& loop, std::unique_ptr<ByteStream> stream)
    : loop_(loop),
      stream_(std::move(stream)),
      writer_(*loop.group().budget, on_body_wanted),
      opened_ns_(loop.now_ns()),
      idle_since_ns_(opened_ns_),
      heard_ns_(opened_ns_),
      moved_ns_(opened_ns_),
      resets_allowed_(kResetsMax),
      resets_counted_at_ns_(loop.now_ns()) {
  if (nghttp2_session_server_new2(&session_, callbacks(), this, loop.http2_options()) != 0) {
    session_ = nullptr;
    closed_ = true;
    return;
  }
  writer_.set_session(session_);
  const GrpcServerOptions& options = loop.group().options;
  const nghttp2_settings_entry settings[] = {
      {NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, options.streams_max},
      {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, static_cast<std::uint32_t>(kStreamWindowBytes)},
      {NGHTTP2_SETTINGS_MAX_FRAME_SIZE, kFrameBytesMax},
      {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, static_cast<std::uint32_t>(options.header_bytes_max)},
  };
  nghttp2_submit_settings(session_, NGHTTP2_FLAG_NONE, settings, std::size(settings));
  nghttp2_session_set_local_window_size(session_, NGHTTP2_FLAG_NONE, 0, kConnectionWindowBytes);
}

Http2Connection::~Http2Connection() {
  while (!calls_.empty()) release(*calls_.back());
  nghttp2_session_del(session_);
}

const nghttp2_session_callbacks* Http2Connection::callbacks() {
  static const nghttp2_session_callbacks* const made = [] {
    nghttp2_session_callbacks* callbacks = nullptr;
    nghttp2_session_callbacks_new(&callbacks);
    nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks, on_begin_headers);
    nghttp2_session_callbacks_set_on_header_callback(callbacks, on_header);
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, on_frame);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, on_data);
    nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, on_stream_close);
    nghttp2_session_callbacks_set_on_frame_send_callback(callbacks, on_frame_sent);
    nghttp2_session_callbacks_set_send_data_callback(callbacks, on_body);
    return callbacks;
  }();
  return made;
}

// ---- Stage 1: receive -----------------------------------------------------------------------------------------------

bool Http2Connection::wants_to_receive() const {
  if (stream_->receive_wants_room()) return false;
  return !blocked_ || nghttp2_session_get_outbound_queue_size(session_) < kFramesWaitingMax;
}

void Http2Connection::receive(std::span<std::byte> buffer) {
  const ByteStream::Moved received = stream_->receive(buffer);
  closed_ = closed_ || received.closed;
  loop_.send_later(*this);
  if (received.bytes == 0 || closing_) return;
  const ssize_t read =
      nghttp2_session_mem_recv(session_, reinterpret_cast<const std::uint8_t*>(buffer.data()), received.bytes);
  if (read >= 0) return;
  if (read == NGHTTP2_ERR_FLOODED || read == NGHTTP2_ERR_TOO_MANY_CONTINUATIONS ||
      read == NGHTTP2_ERR_TOO_MANY_SETTINGS)
    terminate(NGHTTP2_ENHANCE_YOUR_CALM);
  closing_ = true;
}

void Http2Connection::terminate(std::uint32_t error) {
  nghttp2_session_terminate_session(session_, error);
  closing_ = true;
  loop_.send_later(*this);
}

Call* Http2Connection::call_of(std::int32_t stream) {
  if (last_ == nullptr || last_->stream != stream)
    last_ = static_cast<Call*>(nghttp2_session_get_stream_user_data(session_, stream));
  return last_;
}

int Http2Connection::on_begin_headers(nghttp2_session* session, const nghttp2_frame* frame, void* self) {
  if (frame->headers.cat != NGHTTP2_HCAT_REQUEST) return 0;
  auto& connection = *static_cast<Http2Connection*>(self);
  Call& call = connection.loop_.calls().add(connection, frame->hd.stream_id);
  call.since_ns = connection.loop_.now_ns();
  call.position = connection.calls_.size();
  connection.calls_.push_back(&call);
  connection.last_ = &call;
  nghttp2_session_set_stream_user_data(session, frame->hd.stream_id, &call);
  return 0;
}

int Http2Connection::on_header(nghttp2_session*, const nghttp2_frame* frame, const std::uint8_t* name,
                               std::size_t name_size, const std::uint8_t* value, std::size_t value_size, std::uint8_t,
                               void* self) {
  auto& connection = *static_cast<Http2Connection*>(self);
  Call* call = connection.call_of(frame->hd.stream_id);
  if (call == nullptr || call->state != Call::State::kHead) return 0;  // trailers say nothing to a server
  const LoopGroup& group = connection.loop_.group();
  call->head.add({reinterpret_cast<const char*>(name), name_size}, {reinterpret_cast<const char*>(value), value_size},
                 group.methods);
  if (call->head.bytes() > kHeaderExcess * group.options.header_bytes_max)
    connection.terminate(NGHTTP2_ENHANCE_YOUR_CALM);
  return 0;
}

int Http2Connection::on_frame(nghttp2_session*, const nghttp2_frame* frame, void* self) {
  auto& connection = *static_cast<Http2Connection*>(self);
  connection.heard_ns_ = connection.loop_.now_ns();
  if (frame->hd.type == NGHTTP2_RST_STREAM) connection.reset_received();
  if (frame->hd.type == NGHTTP2_SETTINGS) connection.greeted_ = true;
  if (frame->hd.type != NGHTTP2_HEADERS && frame->hd.type != NGHTTP2_DATA) return 0;
  Call* call = connection.call_of(frame->hd.stream_id);
  if (call == nullptr) return 0;
  if (call->state == Call::State::kHead) connection.head_received(*call);
  if ((frame->hd.flags & NGHTTP2_FLAG_END_STREAM) != 0) connection.received_all(*call);
  return 0;
}

void Http2Connection::reset_received() {
  const std::int64_t now_ns = loop_.now_ns();
  resets_allowed_ += static_cast<double>(now_ns - resets_counted_at_ns_) * 1e-9 * kResetsPerSecond;
  resets_allowed_ = std::min(resets_allowed_, kResetsMax) - 1;
  resets_counted_at_ns_ = now_ns;
  if (resets_allowed_ < 0) terminate(NGHTTP2_ENHANCE_YOUR_CALM);
}

void Http2Connection::head_received(Call& call) {
  call.state = Call::State::kReceiving;
  if (const int http_error = call.head.http_error(); http_error != 0) {
    loop_.send_later(*this);
    give_up(call);
    return writer_.fail_http(call, http_error);
  }
  Status status = call.head.check(loop_.group().options.header_bytes_max);
  if (status.ok()) status = admit(call);
  if (!status.ok()) fail(call, status);
}

Status Http2Connection::admit(Call& call) {
  if (call.head.method().is_health()) return {};
  LoopGroup& group = loop_.group();
  const std::size_t requests_max = group.options.requests_max;
  call.counted = group.requests.fetch_add(1, std::memory_order_relaxed) < requests_max;  // it orders nothing
  if (call.counted) return {};
  group.requests.fetch_sub(1, std::memory_order_relaxed);
  return ResourceExhausted("the server has " + std::to_string(requests_max) +
                           " requests under way, and takes no more (--grpc_requests_max)");
}

int Http2Connection::on_data(nghttp2_session* session, std::uint8_t, std::int32_t stream, const std::uint8_t* data,
                             std::size_t size, void* self) {
  auto& connection = *static_cast<Http2Connection*>(self);
  Call* call = connection.call_of(stream);
  connection.heard_ns_ = connection.loop_.now_ns();
  nghttp2_session_consume_connection(session, size);
  if (call == nullptr) return 0;
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  if (call->state == Call::State::kWaiting && call->head.method().kind == Method::Kind::kHandlerStream) {
    // Its window stays closed until the message before is answered.
    connection.keep_backlog(*call, bytes);
    return 0;
  }
  nghttp2_session_consume_stream(session, stream, size);
  if (call->state == Call::State::kReceiving) connection.read(*call, bytes);
  return 0;
}

void Http2Connection::read(Call& call, std::span<const std::byte> data) {
  const LoopGroup& group = loop_.group();
  if (call.responding && !call.reader.in_message()) call.since_ns = loop_.now_ns();  // a stream's next message
  const MessageReader::Limits limits{group.options.message_bytes_max, call.head.encoding() != Encoding::kIdentity};
  Status status = call.reader.read(&data, limits, group.budget, loop_.inbox());
  if (!status.ok()) return fail(call, status);
  if (!call.reader.has_message()) return;
  call.state = Call::State::kWaiting;
  if (call.head.method().kind != Method::Kind::kHealthWatch) loop_.call_waits();
  bool compressed = false;
  MessagePtr message = call.reader.take(&compressed);
  status = loop_.dispatcher().dispatch(call, std::move(message), compressed, loop_.now_ns());
  if (!status.ok()) return fail(call, status);
  keep_backlog(call, data);
}

void Http2Connection::inflated(Call& call, Status status, const MessagePtr& message, std::int64_t now_ns) {
  if (status.ok()) status = loop_.dispatcher().dispatch(call, message, false, now_ns);
  if (!status.ok()) fail(call, status);
}

// What follows a message waits until that is answered, if it may have meaning: a method that takes one message lets
// further ones pass, as other gRPC servers do.
void Http2Connection::keep_backlog(Call& call, std::span<const std::byte> data) {
  if (data.empty() || call.head.method().kind != Method::Kind::kHandlerStream) return;
  if (const Status status = writer_.charge(call, data.size()); !status.ok()) return fail(call, status);
  call.backlog.append(reinterpret_cast<const char*>(data.data()), data.size());
}

void Http2Connection::read_backlog(Call& call) {
  const std::string backlog = std::exchange(call.backlog, {});
  writer_.give_back(call, backlog.size());
  nghttp2_session_consume_stream(session_, call.stream, backlog.size());
  if (!backlog.empty()) read(call, std::as_bytes(std::span(backlog)));
  if (call.received_all) received_all(call);
}

void Http2Connection::received_all(Call& call) {
  call.received_all = true;
  if (call.state != Call::State::kReceiving) return;
  if (call.head.method().kind != Method::Kind::kHandlerStream || call.reader.in_message())
    return fail(call, Internal("the client's side ended before its message did"));
  finish(call);
}

// A stream of messages ends well.
void Http2Connection::finish(Call& call) {
  loop_.send_later(*this);
  give_up(call);
  writer_.finish(call, {});
}

int Http2Connection::on_stream_close(nghttp2_session*, std::int32_t stream, std::uint32_t, void* self) {
  auto& connection = *static_cast<Http2Connection*>(self);
  if (Call* call = connection.call_of(stream)) connection.release(*call);
  return 0;
}

void Http2Connection::release(Call& call) {
  if (last_ == &call) last_ = nullptr;
  give_up(call);
  loop_.group().budget->give_back(call.charged);
  if (call.counted) loop_.group().requests.fetch_sub(1, std::memory_order_relaxed);
  calls_[call.position] = calls_.back();
  calls_[call.position]->position = call.position;
  calls_.pop_back();
  if (calls_.empty()) idle_since_ns_ = loop_.now_ns();
  loop_.calls().release(call);
}

// ---- Stage 8: send --------------------------------------------------------------------------------------------------

void Http2Connection::reply(Call& call) {
  const Status& status = call.request->status;
  if (!status.ok()) return fail(call, status);
  if (is_for_the_pool(call, call.request->response()))
    return loop_.dispatcher().deflate(call, [request = call.request] { return std::string_view(request->response()); });
  waits_no_more(call);
  loop_.send_later(*this);
  writer_.reply(call, call.request->response());
}

void Http2Connection::answer(Call& call, const Status& status, std::string response) {
  if (!status.ok()) return fail(call, status);
  const Method& method = call.head.method();
  loop_.send_later(*this);
  if (!method.is_stream()) {
    if (is_for_the_pool(call, response))
      return loop_.dispatcher().deflate(call, [response = std::move(response)] { return std::string_view(response); });
    waits_no_more(call);
    call.response = std::move(response);
    return writer_.reply(call, call.response);
  }
  writer_.push(call, std::move(response));
  if (call.ended) return give_up(call);
  if (method.kind == Method::Kind::kHealthWatch) return;
  waits_no_more(call);
  call.state = Call::State::kReceiving;
  read_backlog(call);
}

void Http2Connection::deflated(Call& call, const Status& status, std::string response) {
  if (!status.ok()) return fail(call, status);
  waits_no_more(call);
  loop_.send_later(*this);
  writer_.reply_deflated(call, std::move(response));
}

// Answers with an error, or ends a stream with it.
void Http2Connection::fail(Call& call, const Status& status) {
  loop_.send_later(*this);
  give_up(call);
  call.reader.reset();
  writer_.fail(call, status);
}

// Whoever was to answer the call need not any more.
void Http2Connection::give_up(Call& call) {
  if (call.state == Call::State::kWaiting) {
    waits_no_more(call);
    loop_.dispatcher().abandon(call);
  }
  call.state = Call::State::kAnswered;
}

void Http2Connection::waits_no_more(Call& call) {
  call.state = Call::State::kAnswered;
  if (call.head.method().kind != Method::Kind::kHealthWatch) loop_.call_waits_no_more();
}

ssize_t Http2Connection::on_body_wanted(nghttp2_session*, std::int32_t, std::uint8_t*, std::size_t size,
                                        std::uint32_t* flags, nghttp2_data_source* source, void* self) {
  return static_cast<Http2Connection*>(self)->writer_.next_part(*static_cast<Call*>(source->ptr), size, flags);
}

int Http2Connection::on_body(nghttp2_session*, nghttp2_frame*, const std::uint8_t* frame_head, std::size_t size,
                             nghttp2_data_source* source, void* self) {
  constexpr std::size_t kFrameHeadBytes = 9;
  auto& connection = *static_cast<Http2Connection*>(self);
  if (connection.out_.size() >= kSendBytes) return NGHTTP2_ERR_WOULDBLOCK;
  connection.out_.append(reinterpret_cast<const char*>(frame_head), kFrameHeadBytes);
  static_cast<Call*>(source->ptr)->sending.append_to(&connection.out_, size);
  return 0;
}

int Http2Connection::on_frame_sent(nghttp2_session* session, const nghttp2_frame* frame, void* self) {
  if (frame->hd.type != NGHTTP2_HEADERS || (frame->hd.flags & NGHTTP2_FLAG_END_STREAM) == 0) return 0;
  const Call* call = static_cast<Http2Connection*>(self)->call_of(frame->hd.stream_id);
  // Who was answered early need not send the rest.
  if (call != nullptr && !call->received_all)
    nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, call->stream, NGHTTP2_NO_ERROR);
  return 0;
}

// Fetches bytes to send; false where nghttp2 has none.
bool Http2Connection::fill() {
  out_.clear();
  sent_before_ += std::exchange(sent_, 0);
  while (out_.size() < kSendBytes) {
    const std::uint8_t* data = nullptr;
    const ssize_t size = nghttp2_session_mem_send(session_, &data);
    if (size < 0) closed_ = true;
    if (size <= 0) break;
    out_.append(reinterpret_cast<const char*>(data), static_cast<std::size_t>(size));
  }
  return !out_.empty();
}

bool Http2Connection::send() {
  for (int sends = 0; !closed_ && sends < kSendsPerTurn; ++sends) {
    if (sent_ == out_.size() && !fill()) {
      closed_ = closed_ || closing_ || (nghttp2_session_want_read(session_) == 0);
      return false;
    }
    const ByteStream::Moved sent = stream_->send(std::as_bytes(std::span(out_).subspan(sent_)));
    closed_ = sent.closed;
    blocked_ = sent.bytes == 0;
    if (blocked_) return false;
    sent_ += sent.bytes;
  }
  return !closed_;
}

}  // namespace headrace
