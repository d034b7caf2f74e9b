// SPDX-License-Identifier: Apache-2.0
//
// Stage 1 of 8: receive a whole message.

#include "net/message_reader.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

namespace headrace {

Status MessageReader::read(std::span<const std::byte>* data, const Limits& limits,
                           const std::shared_ptr<ByteBudget>& budget, const std::shared_ptr<const void>& keeps) {
  if (message_ == nullptr) {
    const std::size_t part = std::min(data->size(), MessagePrefix::kBytes - prefix_filled_);
    std::memcpy(prefix_ + prefix_filled_, data->data(), part);
    prefix_filled_ += part;
    *data = data->subspan(part);
    if (prefix_filled_ < MessagePrefix::kBytes) return {};
    const std::optional<MessagePrefix> prefix = MessagePrefix::decode(prefix_);
    if (!prefix) return Internal("a message's first byte is neither 0 nor 1");
    if (prefix->length > limits.message_bytes_max)
      return ResourceExhausted("SERVER: Received message larger than max (" + std::to_string(prefix->length) + " vs. " +
                               std::to_string(limits.message_bytes_max) + ")");
    if (prefix->compressed && !limits.may_be_compressed)
      return Internal("Compression bit set but no encoding configured");
    compressed_ = prefix->compressed;
    message_ = Message::try_allocate(prefix->length, budget, keeps);
    if (message_ == nullptr) return budget->refusal(prefix->length);
  }
  const std::size_t part = std::min(data->size(), message_->size() - filled_);
  if (!message_->try_charge(filled_ + part)) return budget->refusal(part);
  if (part != 0) std::memcpy(message_->data() + filled_, data->data(), part);
  filled_ += part;
  *data = data->subspan(part);
  return {};
}

MessagePtr MessageReader::take(bool* compressed) {
  *compressed = compressed_;
  MessagePtr taken = std::move(message_);
  reset();
  return taken;
}

void MessageReader::reset() {
  prefix_filled_ = 0;
  filled_ = 0;
  message_ = nullptr;
}

}  // namespace headrace
