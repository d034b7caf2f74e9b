// SPDX-License-Identifier: Apache-2.0
//
// HTTP/2 frames made by hand, legal or not.
//
// Thread safety: pure functions.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "messages.h"

namespace headrace {

inline constexpr std::string_view kHttp2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

inline std::string big_endian(std::uint32_t value, int bytes) {
  std::string text;
  for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) text += static_cast<char>(value >> shift);
  return text;
}

inline std::string http2_frame(std::uint8_t type, std::uint8_t flags, std::uint32_t stream, std::string_view payload) {
  return big_endian(static_cast<std::uint32_t>(payload.size()), 3) + static_cast<char>(type) +
         static_cast<char>(flags) + big_endian(stream, 4) + std::string(payload);
}

// HPACK's length of a text, and the text: seven bits, and more bytes where that is not enough.
inline std::string hpack_text(std::string_view text) {
  if (text.size() < 127) return static_cast<char>(text.size()) + std::string(text);
  return '\x7F' + varint(text.size() - 127) + std::string(text);
}

// A header as HPACK spells one without its tables.
inline std::string hpack_header(std::string_view name, std::string_view value) {
  return '\0' + hpack_text(name) + hpack_text(value);
}

// The header block of a gRPC call.
inline std::string hpack_call(std::string_view path, std::string_view content_type = "application/grpc") {
  return hpack_header(":method", "POST") + hpack_header(":scheme", "http") + hpack_header(":path", path) +
         hpack_header(":authority", "test") + hpack_header("te", "trailers") +
         hpack_header("content-type", content_type);
}

}  // namespace headrace
