// SPDX-License-Identifier: Apache-2.0

#include "net/grpc_codec.h"

#include <algorithm>
#include <limits>

#include "wire/proto.h"

namespace headrace {
namespace {

constexpr std::size_t kTimeoutDigitsMax = 8;
constexpr std::string_view kGrpcContentType = "application/grpc";
constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";  // U+FFFD

std::optional<std::int64_t> unit_ns(char unit) {
  switch (unit) {
    case 'H':
      return 3'600'000'000'000;
    case 'M':
      return 60'000'000'000;
    case 'S':
      return 1'000'000'000;
    case 'm':
      return 1'000'000;
    case 'u':
      return 1'000;
    case 'n':
      return 1;
    default:
      return std::nullopt;
  }
}

// The bytes of the character that a text begins with; 0 where it begins with none.
std::size_t character_bytes(std::string_view text) {
  constexpr std::size_t kUtf8BytesMax = 4;
  for (std::size_t bytes = 1; bytes <= std::min(kUtf8BytesMax, text.size()); ++bytes)
    if (is_utf8(text.substr(0, bytes))) return bytes;
  return 0;
}

bool travels_as_it_is(char c) { return c >= ' ' && c <= '~' && c != '%'; }

void append_encoded(std::string_view bytes, std::string* out) {
  constexpr char kHexDigits[] = "0123456789ABCDEF";
  for (const char c : bytes) {
    if (travels_as_it_is(c)) {
      out->push_back(c);
      continue;
    }
    const auto byte = static_cast<std::uint8_t>(c);
    out->push_back('%');
    out->push_back(kHexDigits[byte >> 4]);
    out->push_back(kHexDigits[byte & 15]);
  }
}

}  // namespace

std::optional<std::int64_t> parse_grpc_timeout_ns(std::string_view text) {
  if (text.size() < 2 || text.size() > kTimeoutDigitsMax + 1) return std::nullopt;
  const std::optional<std::int64_t> unit = unit_ns(text.back());
  if (!unit) return std::nullopt;
  text.remove_suffix(1);
  std::int64_t count = 0;
  for (const char digit : text) {
    if (digit < '0' || digit > '9') return std::nullopt;
    count = 10 * count + (digit - '0');
  }
  // 99999999H are more nanoseconds than there is room for.
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  return count > kMost / *unit ? kMost : count * *unit;
}

std::string percent_encoded(std::string_view message) {
  std::string encoded;
  encoded.reserve(message.size());
  while (!message.empty()) {
    const std::size_t bytes = character_bytes(message);
    append_encoded(bytes != 0 ? message.substr(0, bytes) : kReplacementCharacter, &encoded);
    message.remove_prefix(std::max<std::size_t>(bytes, 1));
  }
  return encoded;
}

bool is_grpc_content_type(std::string_view content_type) {
  if (!content_type.starts_with(kGrpcContentType)) return false;
  content_type.remove_prefix(kGrpcContentType.size());
  return content_type.empty() || content_type.front() == '+' || content_type.front() == ';';
}

std::optional<MessagePrefix> MessagePrefix::decode(std::span<const std::byte> bytes) {
  const auto flag = std::to_integer<std::uint8_t>(bytes[0]);
  if (flag > 1) return std::nullopt;
  MessagePrefix prefix{.compressed = flag == 1};
  for (std::size_t i = 1; i < kBytes; ++i)
    prefix.length = prefix.length << 8 | std::to_integer<std::uint32_t>(bytes[i]);
  return prefix;
}

void MessagePrefix::encode(std::byte* to) const {
  to[0] = std::byte{compressed};
  for (std::size_t i = 1; i < kBytes; ++i) to[i] = static_cast<std::byte>(length >> 8 * (kBytes - 1 - i));
}

}  // namespace headrace
