// SPDX-License-Identifier: Apache-2.0
//
// Stages 2 and 3 of 8: decode a message and enqueue its request, or hand it to who else answers it.

#include "net/dispatcher.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "net/codec_pool.h"
#include "net/compression.h"
#include "net/handler_queue.h"
#include "net/health_table.h"
#include "net/http2_connection.h"

namespace headrace {
namespace {

std::string_view text_of(Message& message) { return {reinterpret_cast<const char*>(message.data()), message.size()}; }

}  // namespace

Status Dispatcher::dispatch(Call& call, MessagePtr message, bool compressed, std::int64_t now_ns) {
  const Method& method = call.head.method();
  if (!method.is_health() && group_.phase.load() != LoopGroup::Phase::kServing)
    return Unavailable("the server is stopping");
  if (compressed) return inflate(call, message, now_ns);
  switch (method.kind) {
    case Method::Kind::kPredict:
      return predict(call, message, now_ns);
    case Method::Kind::kHealthCheck:
      return check_health(call, text_of(*message));
    case Method::Kind::kHealthWatch:
      return watch_health(call, text_of(*message));
    default:
      return handle(call, std::move(message));
  }
}

Status Dispatcher::predict(Call& call, const MessagePtr& message, std::int64_t now_ns) {
  PredictRequestPtr request;
  Router::Route route;
  Status status = PredictRequest::decode(message->bytes(), message, &request);
  if (status.ok()) status = group_.router->route(request->model_spec(), &route);
  if (status.ok())
    status = request->bind(route.lane->signature(), route.model_name, route.model->version(),
                           route.lane->options().slab_bytes_max);
  if (!status.ok()) return status;
  request->token = call.token;
  request->bytes = message->size();
  if (call.head.timeout_ns()) request->deadline_ns = after_ns(now_ns, *call.head.timeout_ns());
  request->sink = inbox_.get();
  status = enqueue(*route.lane, request);
  if (!status.ok()) return status;
  call.request = std::move(request);
  call.lane = route.lane;
  return {};
}

// Stage 3.  The loop announces what is queued before it sleeps, so that no timer need watch over it; a full batch is
// announced at once.
Status Dispatcher::enqueue(Lane& lane, const RequestPtr& request) {
  const PolicyOptions& policy = lane.options().policy;
  if (policy.policy != Policy::kAdaptive) return lane.submit_soon(request);  // its batches wait for their windows
  Status status = lane.submit_to_run(request);
  if (!status.ok()) return status;
  if (lane.was_waiting_rows() >= policy.max_batch_size)
    lane.announce();
  else if (std::find(unannounced_.begin(), unannounced_.end(), &lane) == unannounced_.end())
    unannounced_.push_back(&lane);
  return {};
}

Status Dispatcher::check_health(Call& call, std::string_view message) {
  std::string response;
  Status status = group_.health.check(message, &response);
  if (status.ok()) inbox_->answer({call.token, {}, std::move(response)});
  return status;
}

Status Dispatcher::watch_health(Call& call, std::string_view message) {
  Status status = group_.health.watch(
      message,
      [inbox = inbox_, token = call.token](std::string_view response) {
        inbox->answer({token, {}, std::string(response)});
      },
      &call.watch);
  call.watches = status.ok();
  return status;
}

Status Dispatcher::handle(Call& call, MessagePtr message) {
  auto handler_call = std::make_unique<HandlerCall>(
      call.head.method().path, std::move(message),
      [inbox = inbox_, token = call.token](const Status& status, std::string_view response) {
        inbox->answer({token, status, std::string(response)});
      });
  const Status status = group_.handlers.push(handler_call);
  if (!status.ok()) handler_call->answer(status, {});
  return {};
}

void Dispatcher::abandon(Call& call) {
  if (call.request != nullptr) call.lane->cancel(call.request);
  if (std::exchange(call.watches, false)) group_.health.unwatch(call.watch);
}

void Dispatcher::announce() {
  for (Lane* lane : unannounced_) lane->announce();
  unannounced_.clear();
}

// ---- Compressed messages --------------------------------------------------------------------------------------------

namespace {

// Grows what `charge` takes of the budget, while somebody wants the outcome.
MayGrow within(ByteCharge& charge, const CodecPool& codecs) {
  return [&](std::size_t bytes) {
    return codecs.is_closed() ? Unavailable("the server is stopping") : charge.grow_to(bytes);
  };
}

// The message without its compression.
Status inflated(Encoding encoding, Message& message, std::size_t bytes_max, LoopGroup& group,
                const std::shared_ptr<ReplyInbox>& inbox, MessagePtr* whole) {
  ByteCharge charge(*group.budget);
  std::string text;
  const MayGrow may_grow = within(charge, group.codecs);
  Status status = headrace::inflate(encoding, message.bytes(), bytes_max, &text, may_grow);
  if (!status.ok()) return status;
  *whole = Message::try_allocate(text.size(), group.budget, inbox);
  if (*whole == nullptr || !(*whole)->try_charge(text.size())) return group.budget->refusal(text.size());
  text.copy(reinterpret_cast<char*>((*whole)->data()), text.size());
  return {};
}

}  // namespace

// What is small, and stays small, is inflated here; all else by the pool.
Status Dispatcher::inflate(Call& call, const MessagePtr& message, std::int64_t now_ns) {
  const Encoding encoding = call.head.encoding();
  const std::size_t bytes_max = group_.options.message_bytes_max;
  if (message->size() <= CodecPool::kInlineBytesMax) {
    const std::size_t inline_bytes_max = std::min(bytes_max, 4 * CodecPool::kInlineBytesMax);
    MessagePtr whole;
    const Status status = inflated(encoding, *message, inline_bytes_max, group_, inbox_, &whole);
    if (status.ok()) return dispatch(call, std::move(whole), false, now_ns);
    if (status.code() != Code::kResourceExhausted) return status;
  }
  // The group closes its pool before it goes.
  group_.codecs.run([=, &group = group_, inbox = inbox_, token = call.token] {
    MessagePtr whole;
    const Status status = inflated(encoding, *message, bytes_max, group, inbox, &whole);
    inbox->resume({token, [=](Call& call) { call.connection->inflated(call, status, whole, now_ns); }});
  });
  return {};
}

void Dispatcher::deflate(const Call& call, std::function<std::string_view()> text) {
  group_.codecs.run([encoding = call.head.reply_encoding(), &group = group_, inbox = inbox_, token = call.token,
                     text = std::move(text)] {
    ByteCharge charge(*group.budget);
    auto deflated = std::make_shared<std::string>();
    const MayGrow may_grow = within(charge, group.codecs);
    const Status status = headrace::deflate(encoding, std::as_bytes(std::span(text())), deflated.get(), may_grow);
    inbox->resume({token, [=](Call& call) { call.connection->deflated(call, status, std::move(*deflated)); }});
  });
}

}  // namespace headrace
