// SPDX-License-Identifier: Apache-2.0

#include "wire/proto.h"

namespace headrace {
namespace {

// protobuf's default recursion limit; deeper groups are refused.
constexpr int kGroupDepthMax = 100;

bool is_continuation(char c) { return (static_cast<std::uint8_t>(c) & 0xC0) == 0x80; }

}  // namespace

bool read_long_varint(const char** position, const char* end, std::uint64_t* value) {
  std::uint64_t sum = 0;
  const char* p = *position;
  for (unsigned shift = 0; shift < 70 && p < end; shift += 7) {
    const auto byte = static_cast<std::uint8_t>(*p++);
    sum |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
    if (byte < 0x80) {
      *position = p;
      *value = sum;
      return true;
    }
  }
  return false;
}

bool FieldReader::skip_group(std::uint32_t number) {
  std::uint32_t open[kGroupDepthMax];
  int depth = 0;
  open[depth++] = number;
  while (depth != 0) {
    Field field;
    if (!read_tag(&field.tag) || field.number() == 0) return false;
    if (field.type() == WireType::kGroup) {
      if (depth == kGroupDepthMax) return false;
      open[depth++] = field.number();
    } else if (field.type() == WireType::kEndGroup) {
      if (open[--depth] != field.number()) return false;
    } else if (!read_payload(&field)) {
      return false;
    }
  }
  return true;
}

bool is_utf8(std::string_view text) {
  const char* p = text.data();
  const char* const end = p + text.size();
  while (p < end) {
    if (end - p >= 8) {
      std::uint64_t eight;
      std::memcpy(&eight, p, 8);
      if ((eight & 0x8080808080808080) == 0) {
        p += 8;
        continue;
      }
    }
    const auto lead = static_cast<std::uint8_t>(*p++);
    if (lead < 0x80) continue;
    // How many bytes follow, and what the first of them must lie in: the table of well-formed sequences of the Unicode
    // standard (3-7), which keeps out overlong forms, surrogates and what lies beyond U+10FFFF.
    int following;
    std::uint8_t low = 0x80, high = 0xBF;
    if (lead < 0xC2) {
      return false;
    } else if (lead < 0xE0) {
      following = 1;
    } else if (lead < 0xF0) {
      following = 2;
      if (lead == 0xE0) low = 0xA0;
      if (lead == 0xED) high = 0x9F;
    } else if (lead < 0xF5) {
      following = 3;
      if (lead == 0xF0) low = 0x90;
      if (lead == 0xF4) high = 0x8F;
    } else {
      return false;
    }
    if (end - p < following) return false;
    const auto second = static_cast<std::uint8_t>(*p);
    if (second < low || second > high) return false;
    for (int i = 1; i < following; ++i)
      if (!is_continuation(p[i])) return false;
    p += following;
  }
  return true;
}

}  // namespace headrace
