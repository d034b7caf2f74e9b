// SPDX-License-Identifier: Apache-2.0
//
// Compression of messages, as grpc-encoding names it.
//
// Thread safety: pure functions.

#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/status.h"

namespace headrace {

enum class Encoding { kIdentity, kGzip, kDeflate };

// "identity", "gzip" or "deflate", which is zlib's format; nullopt for anything else.
std::optional<Encoding> parse_encoding(std::string_view name);
std::string_view encoding_name(Encoding encoding);

// What the server understands, for grpc-accept-encoding.
inline constexpr std::string_view kAcceptedEncodings = "identity, deflate, gzip";

// Some of them, one bit each.
using Encodings = unsigned;
constexpr Encodings bit_of(Encoding encoding) { return 1u << static_cast<unsigned>(encoding); }

// Those of kAcceptedEncodings that a client's grpc-accept-encoding names.
Encodings encodings_in(std::string_view accepted);

// Whether a text may grow to so many bytes; asked before memory is taken, and again every few megabytes.  What it
// answers, unless OK, is the end.
using MayGrow = std::function<Status(std::size_t bytes)>;

// RESOURCE_EXHAUSTED as soon as more than `bytes_max` would come out, INTERNAL for what is not so encoded.
Status inflate(
    Encoding encoding, std::span<const std::byte> message, std::size_t bytes_max, std::string* out,
    const MayGrow& may_grow = [](std::size_t) { return Status(); });

Status deflate(
    Encoding encoding, std::span<const std::byte> message, std::string* out,
    const MayGrow& may_grow = [](std::size_t) { return Status(); });

}  // namespace headrace
