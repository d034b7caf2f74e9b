// SPDX-License-Identifier: Apache-2.0
//
// MessageReader: puts the messages of one stream together from whatever pieces its bytes come in.
//
// Thread safety: one thread at a time.
// Ownership: a whole message belongs to whoever takes it.

#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "core/status.h"
#include "net/grpc_codec.h"
#include "net/message.h"

namespace headrace {

class MessageReader {
 public:
  struct Limits {
    std::size_t message_bytes_max = 0;
    bool may_be_compressed = false;
  };

  // Takes bytes off the front of `data` until a message is whole or there are no more.  An error, found as early as
  // in the prefix, is the end of the stream.  `keeps` is for the messages (message.h).
  Status read(std::span<const std::byte>* data, const Limits& limits, const std::shared_ptr<ByteBudget>& budget,
              const std::shared_ptr<const void>& keeps);

  bool has_message() const { return message_ != nullptr && filled_ == message_->size(); }
  // Whether it is in the middle of one.
  bool in_message() const { return !has_message() && (prefix_filled_ != 0); }
  // REQUIRES: has_message().
  MessagePtr take(bool* compressed);

  void reset();

 private:
  std::byte prefix_[MessagePrefix::kBytes] = {};
  std::size_t prefix_filled_ = 0;
  bool compressed_ = false;
  MessagePtr message_;  // null until the prefix is there
  std::size_t filled_ = 0;
};

}  // namespace headrace
