// SPDX-License-Identifier: Apache-2.0
//
// Dispatcher: hands whole messages to who answers them: a lane, the health table, or the handlers.
//
// Thread safety: the loop's thread.  Ownership: the inbox is kept by whatever may still answer.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "net/call.h"
#include "net/loop_group.h"
#include "net/reply_inbox.h"

namespace headrace {

class Dispatcher {
 public:
  Dispatcher(LoopGroup& group, std::shared_ptr<ReplyInbox> inbox) : group_(group), inbox_(std::move(inbox)) {}

  // Stages 2-3.  On OK the answer comes through the inbox with the call's token; on an error it never does.
  // `now_ns` is when the message came.
  Status dispatch(Call& call, MessagePtr message, bool compressed, std::int64_t now_ns);

  // Has the codec pool deflate the response that `text` returns, which is valid for as long as `text` lives; the call's
  // connection goes on with it.
  void deflate(const Call& call, std::function<std::string_view()> text);

  // The client does not wait any more: what was handed on is taken back where that is possible.
  void abandon(Call& call);

  // Tells the lanes what was queued in this turn of the loop.
  void announce();

 private:
  Status predict(Call& call, const MessagePtr& message, std::int64_t now_ns);
  Status enqueue(Lane& lane, const RequestPtr& request);
  Status check_health(Call& call, std::string_view message);
  Status watch_health(Call& call, std::string_view message);
  Status handle(Call& call, MessagePtr message);
  Status inflate(Call& call, const MessagePtr& message, std::int64_t now_ns);

  LoopGroup& group_;
  const std::shared_ptr<ReplyInbox> inbox_;
  std::vector<Lane*> unannounced_;
};

}  // namespace headrace
