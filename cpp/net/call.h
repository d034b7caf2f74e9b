// SPDX-License-Identifier: Apache-2.0
//
// Call: one stream of a connection: what has come of it, who is working on it, and what is being sent.
// CallTable: the calls of a loop, found by tokens that no later call ever has.
//
// Thread safety: the loop's thread.
// Ownership: a call belongs to its table; keeps its request, and so the response, until the stream is closed.
// Invariant: a token of a call that was released finds nothing.

#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "lane.h"
#include "net/grpc_codec.h"
#include "net/message_reader.h"
#include "net/request_head.h"
#include "wire/predict.h"

namespace headrace {

class Http2Connection;

// One message on its way out, behind its prefix.
struct OutgoingMessage {
  OutgoingMessage() = default;
  OutgoingMessage(std::string_view bytes, bool compressed) : bytes(bytes) {
    MessagePrefix{.compressed = compressed, .length = static_cast<std::uint32_t>(bytes.size())}.encode(prefix);
    left = MessagePrefix::kBytes + bytes.size();
  }

  // The next `size` bytes, appended to `out`.  REQUIRES: so many are left.
  void append_to(std::string* out, std::size_t size);

  std::string_view bytes;
  std::byte prefix[MessagePrefix::kBytes] = {};
  std::size_t left = 0;
};

struct Call {
  enum class State : std::uint8_t {
    kHead,       // its headers are arriving
    kReceiving,  // a message is, or the end
    kWaiting,    // for the answer to a message
    kAnswered,   // the end of the answer is on its way; what still arrives is discarded
  };

  std::uint64_t token = 0;
  Http2Connection* connection = nullptr;  // null: free
  std::int32_t stream = 0;
  std::size_t position = 0;  // among its connection's calls
  State state = State::kHead;
  bool received_all = false;  // the client has ended its side
  bool counted = false;       // among the group's requests

  std::int64_t since_ns = 0;  // since when it receives: its head, or a message; or has sent nothing of what it has to
  std::size_t left_seen = 0;  // of what is being sent, at since_ns

  RequestHead head;
  MessageReader reader;
  std::string backlog;  // of a stream whose message before is being answered; not yet given back to flow control

  PredictRequestPtr request;  // queued in `lane`
  Lane* lane = nullptr;
  std::uint64_t watch = 0;  // the health table's number
  bool watches = false;

  bool responding = false;  // the response's headers were submitted
  bool deferred = false;    // there was nothing to send when HTTP/2 asked
  OutgoingMessage sending;
  std::string response;             // what `sending` points to, unless that is the request's
  std::vector<std::string> queued;  // further messages of a stream
  std::size_t charged = 0;          // bytes of the budget that its responses hold
  bool ended = false;               // nothing follows what is being sent but `end`
  Status end;
};

class CallTable {
 public:
  Call& add(Http2Connection& connection, std::int32_t stream);
  void release(Call& call);

  // Null where the call was released.
  Call* find(std::uint64_t token);

  // Calls that are not released.
  std::size_t size() const { return calls_.size() - free_.size(); }

 private:
  static constexpr unsigned kIndexBits = 32;

  std::deque<Call> calls_;
  std::vector<std::uint32_t> free_;
  std::vector<std::uint32_t> generations_;
};

}  // namespace headrace
