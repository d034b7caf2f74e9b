// SPDX-License-Identifier: Apache-2.0
//
// Protocol Buffers' wire format: fields read in place and written into one exact-size string, no messages.
// https://protobuf.dev/programming-guides/encoding; where it leaves a choice, what protobuf's C++ parser does is done.
//
// Thread safety: none; each reader and writer belongs to one thread.
// Ownership: none; fields are views of the message, and the writer's string is its caller's.
// Invariants: nothing is read outside the message, whatever its bytes; a malformed field ends the reading for good.

#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace headrace {

static_assert(std::endian::native == std::endian::little, "fixed-width values are used as they lie in the message");

enum class WireType : std::uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kGroup = 3, kEndGroup = 4, kFixed32 = 5 };

// What stands before a field: its number and wire type in one.  A known number with another wire type is, as in
// protobuf, an unknown field.
constexpr std::uint32_t make_tag(std::uint32_t number, WireType type) {
  return number << 3 | static_cast<std::uint32_t>(type);
}

struct Field {
  std::uint32_t tag = 0;
  std::uint64_t varint = 0;  // of a varint field
  std::string_view bytes;    // of a length-delimited or fixed-width field; groups are read over and come without

  std::uint32_t number() const { return tag >> 3; }
  WireType type() const { return static_cast<WireType>(tag & 7); }
};

// Reads the varint at `*position` and moves behind it; false where it ends neither before `end` nor within 10 bytes.
// Bits beyond the 64th are dropped.
bool read_long_varint(const char** position, const char* end, std::uint64_t* value);
inline bool read_varint(const char** position, const char* end, std::uint64_t* value) {
  if (*position < end && static_cast<signed char>(**position) >= 0) {
    *value = static_cast<std::uint8_t>(*(*position)++);
    return true;
  }
  return read_long_varint(position, end, value);
}

// The fields of one message, in its order.
class FieldReader {
 public:
  explicit FieldReader(std::string_view message) : position_(message.data()), end_(position_ + message.size()) {}

  // Whether there was another field; false at the end and, once and for all, at a malformed field.
  [[nodiscard]] bool next(Field* field) {
    if (position_ == end_) return false;
    return (read_tag(&field->tag) && field->number() != 0 && read_payload(field)) || fail();
  }

  // Whether everything read so far was well formed.
  bool ok() const { return ok_; }

 private:
  static constexpr std::ptrdiff_t kTagBytesMax = 5;

  bool fail() {
    end_ = position_;
    ok_ = false;
    return false;
  }

  bool read_tag(std::uint32_t* tag) {
    const char* const begin = position_;
    std::uint64_t value;
    if (!read_varint(&position_, end_, &value) || position_ - begin > kTagBytesMax) return false;
    *tag = static_cast<std::uint32_t>(value);
    return true;
  }

  bool read_payload(Field* field) {
    std::uint64_t size = 0;
    switch (field->type()) {
      case WireType::kVarint:
        return read_varint(&position_, end_, &field->varint);
      case WireType::kBytes:
        return read_varint(&position_, end_, &size) && take(size, field);
      case WireType::kFixed32:
        return take(4, field);
      case WireType::kFixed64:
        return take(8, field);
      case WireType::kGroup:
        field->bytes = {};
        return skip_group(field->number());
      default:  // an end without its beginning, and the two wire types that do not exist
        return false;
    }
  }

  bool take(std::uint64_t size, Field* field) {
    if (size > static_cast<std::uint64_t>(end_ - position_)) return false;
    field->bytes = {position_, static_cast<std::size_t>(size)};
    position_ += size;
    return true;
  }

  bool skip_group(std::uint32_t number);

  const char* position_;
  const char* end_;
  bool ok_ = true;
};

// Whether a string field may hold `text`.  proto3 strings are UTF-8, and protobuf's C++ parser refuses a message
// whose strings are not (https://protobuf.dev/programming-guides/proto3/#scalar); surrogates and overlong forms are
// not.
bool is_utf8(std::string_view text);

constexpr std::size_t varint_bytes(std::uint64_t value) {
  return (static_cast<std::size_t>(std::bit_width(value | 1)) * 9 + 64) / 64;  // a seventh, rounded up
}

// The bytes of a whole field, tag included.
constexpr std::size_t varint_field_bytes(std::uint32_t number, std::uint64_t value) {
  return varint_bytes(make_tag(number, WireType::kVarint)) + varint_bytes(value);
}
constexpr std::size_t bytes_field_bytes(std::uint32_t number, std::size_t size) {
  return varint_bytes(make_tag(number, WireType::kBytes)) + varint_bytes(size) + size;
}

// Appends fields to a string.  Lengths are known before they are written, so the caller can reserve exactly and
// nothing moves.  Short pieces are staged, because each append to a string costs more than they do; flush() ends it.
class FieldWriter {
 public:
  explicit FieldWriter(std::string* out) : out_(out) {}
  FieldWriter(const FieldWriter&) = delete;
  FieldWriter& operator=(const FieldWriter&) = delete;

  void write_varint(std::uint64_t value) {
    write_varints(1, [value](std::size_t) { return value; });
  }

  // Writes at(0), at(1), ... at(count - 1).
  template <typename At>
  void write_varints(std::size_t count, At at) {
    for (std::size_t i = 0; i < count;) {
      if (kStageBytes - staged_ < kVarintBytesMax) flush();
      const std::size_t block_end = std::min(count, i + (kStageBytes - staged_) / kVarintBytesMax);
      char* out = stage_ + staged_;
      for (; i < block_end; ++i) {
        std::uint64_t value = at(i);
        for (; value >= 0x80; value >>= 7) *out++ = static_cast<char>(value | 0x80);
        *out++ = static_cast<char>(value);
      }
      staged_ = static_cast<std::size_t>(out - stage_);
    }
  }

  void write_raw(const void* data, std::size_t size) {
    if (size > kStageBytes - staged_) {
      flush();
      if (size > kStageBytes) {
        out_->append(static_cast<const char*>(data), size);
        return;
      }
    }
    if (size != 0) std::memcpy(stage_ + staged_, data, size);
    staged_ += size;
  }

  void write_varint_field(std::uint32_t number, std::uint64_t value) {
    write_varint(make_tag(number, WireType::kVarint));
    write_varint(value);
  }

  // Begins a length-delimited field whose `size` bytes are written next.
  void open_bytes_field(std::uint32_t number, std::size_t size) {
    write_varint(make_tag(number, WireType::kBytes));
    write_varint(size);
  }

  void write_bytes_field(std::uint32_t number, std::string_view bytes) {
    open_bytes_field(number, bytes.size());
    write_raw(bytes.data(), bytes.size());
  }

  void flush() {
    out_->append(stage_, staged_);
    staged_ = 0;
  }

 private:
  static constexpr std::size_t kVarintBytesMax = 10;
  static constexpr std::size_t kStageBytes = 512;

  std::string* out_;
  std::size_t staged_ = 0;
  char stage_[kStageBytes];
};

}  // namespace headrace
