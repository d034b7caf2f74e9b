// SPDX-License-Identifier: Apache-2.0

#include "net/call.h"

#include <algorithm>

namespace headrace {

void OutgoingMessage::append_to(std::string* out, std::size_t size) {
  if (left > bytes.size()) {
    const std::size_t part = std::min(size, left - bytes.size());
    out->append(reinterpret_cast<const char*>(prefix) + (bytes.size() + MessagePrefix::kBytes - left), part);
    left -= part;
    size -= part;
  }
  out->append(bytes.substr(bytes.size() - std::min(left, bytes.size()), size));
  left -= size;
}

Call& CallTable::add(Http2Connection& connection, std::int32_t stream) {
  if (free_.empty()) {
    free_.push_back(static_cast<std::uint32_t>(calls_.size()));
    calls_.emplace_back();
    generations_.push_back(0);
  }
  const std::uint32_t index = free_.back();
  free_.pop_back();
  Call& call = calls_[index];
  call.token = std::uint64_t{++generations_[index]} << kIndexBits | index;
  call.connection = &connection;
  call.stream = stream;
  return call;
}

void CallTable::release(Call& call) {
  free_.push_back(static_cast<std::uint32_t>(call.token));
  call = Call();
}

Call* CallTable::find(std::uint64_t token) {
  const auto index = static_cast<std::uint32_t>(token);
  if (index >= calls_.size() || calls_[index].token != token) return nullptr;
  return &calls_[index];
}

}  // namespace headrace
