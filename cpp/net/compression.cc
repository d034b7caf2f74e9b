// SPDX-License-Identifier: Apache-2.0

#include "net/compression.h"

#include <zlib.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <new>

#include "wire/predict.h"

namespace headrace {
namespace {

// As zlib counts them: 15 bits of window, and 16 more for gzip's format.
constexpr int kZlibWindow = 15;
constexpr int kGzipWindow = kZlibWindow + 16;

// zlib's own defaults.
constexpr int kMemoryLevel = 8;

constexpr std::size_t kFirstBytes = 1 << 10;

// After so many bytes whoever waits is asked whether to go on.
constexpr std::size_t kStepBytes = 4 << 20;

int window_of(Encoding encoding) { return encoding == Encoding::kGzip ? kGzipWindow : kZlibWindow; }

// zlib reads through a pointer to what is not const.
Bytef* input_of(std::span<const std::byte> message) {
  return const_cast<Bytef*>(reinterpret_cast<const Bytef*>(message.data()));
}

Bytef* room_in(std::string* out, std::size_t begin) { return reinterpret_cast<Bytef*>(out->data() + begin); }

// A stream that is ended with its scope.
class Stream {
 public:
  using End = int (*)(z_streamp);

  explicit Stream(End end) : end_(end) {}
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { end_(&stream_); }

  z_stream* get() { return &stream_; }
  z_stream* operator->() { return &stream_; }

 private:
  z_stream stream_{};
  const End end_;
};

Status out_of_memory() { return ResourceExhausted("no memory to compress or decompress a message"); }

Status too_large(std::size_t bytes_max) {
  return ResourceExhausted("SERVER: Decompressed message larger than max (" + std::to_string(bytes_max) + ")");
}

Status not_encoded(Encoding encoding, std::string_view why) {
  return Internal("a message that is not " + std::string(encoding_name(encoding)) + ": " + std::string(why));
}

Status inflate_into(Encoding encoding, std::span<const std::byte> message, std::size_t bytes_max, std::string* out,
                    const MayGrow& may_grow) {
  Stream stream(&inflateEnd);
  if (inflateInit2(stream.get(), window_of(encoding)) != Z_OK) return out_of_memory();
  stream->next_in = input_of(message);
  stream->avail_in = static_cast<uInt>(message.size());
  // One byte more than there may be, so that what is exactly as long is told from what goes on.
  const std::size_t room_max = bytes_max + 1;
  std::size_t room = std::min(std::max(kFirstBytes, 2 * message.size()), room_max);
  for (;;) {
    const std::size_t done = stream->total_out;
    if (Status status = may_grow(room); !status.ok()) return status;
    out->resize(room);
    stream->next_out = room_in(out, done);
    stream->avail_out = static_cast<uInt>(std::min(room - done, kStepBytes));
    const int result = ::inflate(stream.get(), Z_NO_FLUSH);
    if (stream->total_out > bytes_max) return too_large(bytes_max);
    if (result == Z_STREAM_END) break;
    if (result == Z_MEM_ERROR) return out_of_memory();
    if (result != Z_OK && result != Z_BUF_ERROR)
      return not_encoded(encoding, stream->msg != nullptr ? stream->msg : "it needs a dictionary");
    if (stream->avail_out != 0) return not_encoded(encoding, "its end is missing");
    if (stream->total_out == room) room = std::min(2 * room, room_max);
  }
  if (stream->avail_in != 0) return not_encoded(encoding, "something follows its end");
  out->resize(stream->total_out);
  return {};
}

Status deflate_into(Encoding encoding, std::span<const std::byte> message, std::string* out, const MayGrow& may_grow) {
  Stream stream(&deflateEnd);
  if (deflateInit2(stream.get(), Z_DEFAULT_COMPRESSION, Z_DEFLATED, window_of(encoding), kMemoryLevel,
                   Z_DEFAULT_STRATEGY) != Z_OK)
    return out_of_memory();
  const std::size_t room = deflateBound(stream.get(), message.size());
  if (room > std::numeric_limits<uInt>::max()) return out_of_memory();
  if (Status status = may_grow(room); !status.ok()) return status;
  out->resize(room);
  stream->next_in = input_of(message);
  stream->next_out = room_in(out, 0);
  stream->avail_out = static_cast<uInt>(room);
  for (std::size_t left = message.size(); left > kStepBytes; left -= kStepBytes) {
    stream->avail_in = static_cast<uInt>(kStepBytes);
    if (::deflate(stream.get(), Z_NO_FLUSH) != Z_OK) return Internal("a message cannot be compressed");
    if (Status status = may_grow(room); !status.ok()) return status;
  }
  stream->avail_in = static_cast<uInt>(message.size() - stream->total_in);
  if (::deflate(stream.get(), Z_FINISH) != Z_STREAM_END) return Internal("a message cannot be compressed");
  out->resize(stream->total_out);
  return {};
}

}  // namespace

std::optional<Encoding> parse_encoding(std::string_view name) {
  for (const Encoding encoding : {Encoding::kIdentity, Encoding::kGzip, Encoding::kDeflate})
    if (name == encoding_name(encoding)) return encoding;
  return std::nullopt;
}

std::string_view encoding_name(Encoding encoding) {
  switch (encoding) {
    case Encoding::kIdentity:
      return "identity";
    case Encoding::kGzip:
      return "gzip";
    case Encoding::kDeflate:
      return "deflate";
  }
  return {};
}

Encodings encodings_in(std::string_view accepted) {
  constexpr std::string_view kBlanks = " \t";
  Encodings found = 0;
  while (!accepted.empty()) {
    std::string_view name = accepted.substr(0, accepted.find(','));
    accepted.remove_prefix(std::min(name.size() + 1, accepted.size()));
    name.remove_prefix(std::min(name.find_first_not_of(kBlanks), name.size()));
    name = name.substr(0, name.find_last_not_of(kBlanks) + 1);
    if (const std::optional<Encoding> encoding = parse_encoding(name)) found |= bit_of(*encoding);
  }
  return found;
}

Status inflate(Encoding encoding, std::span<const std::byte> message, std::size_t bytes_max, std::string* out,
               const MayGrow& may_grow) try {
  bytes_max = std::min(bytes_max, kMessageBytesMax);
  if (encoding != Encoding::kIdentity) return inflate_into(encoding, message, bytes_max, out, may_grow);
  if (message.size() > bytes_max) return too_large(bytes_max);
  if (Status status = may_grow(message.size()); !status.ok()) return status;
  out->assign(reinterpret_cast<const char*>(message.data()), message.size());
  return {};
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

Status deflate(Encoding encoding, std::span<const std::byte> message, std::string* out, const MayGrow& may_grow) try {
  if (encoding != Encoding::kIdentity) return deflate_into(encoding, message, out, may_grow);
  if (Status status = may_grow(message.size()); !status.ok()) return status;
  out->assign(reinterpret_cast<const char*>(message.data()), message.size());
  return {};
} catch (const std::bad_alloc&) {
  return out_of_memory();
}

}  // namespace headrace
