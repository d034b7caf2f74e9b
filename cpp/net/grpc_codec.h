// SPDX-License-Identifier: Apache-2.0
//
// The texts of gRPC over HTTP/2 (PROTOCOL-HTTP2.md): timeouts, statuses' messages, and the prefix of a message.
//
// Thread safety: pure functions.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace headrace {

// "100m" as nanoseconds: 1 to 8 digits and one of H, M, S, m, u, n; nullopt for anything else.
std::optional<std::int64_t> parse_grpc_timeout_ns(std::string_view text);

// A message as the grpc-message trailer carries it: UTF-8, with %XX for what is not printable ASCII, and for "%".
std::string percent_encoded(std::string_view message);

// Whether a content-type is that of gRPC: "application/grpc", followed by nothing, "+..." or ";...".
bool is_grpc_content_type(std::string_view content_type);

// What stands before each message: a flag and the length, big-endian.
struct MessagePrefix {
  static constexpr std::size_t kBytes = 5;

  // nullopt where the flag is neither 0 nor 1.  REQUIRES: kBytes bytes.
  static std::optional<MessagePrefix> decode(std::span<const std::byte> bytes);
  void encode(std::byte* to) const;

  bool compressed = false;
  std::uint32_t length = 0;
};

}  // namespace headrace
