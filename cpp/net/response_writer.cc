// SPDX-License-Identifier: Apache-2.0
//
// Stage 8 of 8: responses and errors as HTTP/2 frames.

#include "net/response_writer.h"

#include <iterator>
#include <span>
#include <utility>

#include "net/compression.h"
#include "net/grpc_codec.h"

namespace headrace {
namespace {

constexpr std::size_t kErrorTextMax = 1024;  // in characters, as TensorFlow Serving

const std::string kCodes[] = {"0", "1",  "2",  "3",  "4",  "5",  "6",  "7", "8",
                              "9", "10", "11", "12", "13", "14", "15", "16"};

// A header of which nothing is copied: both texts live for ever.
nghttp2_nv lasting(std::string_view name, std::string_view value) {
  return {reinterpret_cast<std::uint8_t*>(const_cast<char*>(name.data())),
          reinterpret_cast<std::uint8_t*>(const_cast<char*>(value.data())), name.size(), value.size(),
          NGHTTP2_NV_FLAG_NO_COPY_NAME | NGHTTP2_NV_FLAG_NO_COPY_VALUE};
}

nghttp2_nv copied(std::string_view name, std::string_view value) {
  nghttp2_nv header = lasting(name, value);
  header.flags = NGHTTP2_NV_FLAG_NO_COPY_NAME;
  return header;
}

nghttp2_nv status_header(Code code) { return lasting("grpc-status", kCodes[static_cast<std::size_t>(code)]); }

const nghttp2_nv kHttpOk = lasting(":status", "200");
const nghttp2_nv kContentType = lasting("content-type", "application/grpc");

// The text of an error as it travels.
std::string travelling_text(const std::string& message) {
  if (message.size() <= kErrorTextMax) return percent_encoded(message);
  std::size_t characters = 0, end = 0;
  for (; end < message.size(); ++end)
    if ((message[end] & 0xC0) != 0x80 && ++characters > kErrorTextMax) break;
  return percent_encoded(end == message.size() ? message : message.substr(0, end) + "...TRUNCATED");
}

}  // namespace

Status ResponseWriter::charge(Call& call, std::size_t bytes) {
  if (!budget_.try_take(bytes)) return budget_.refusal(bytes);
  call.charged += bytes;
  return {};
}

void ResponseWriter::give_back(Call& call, std::size_t bytes) {
  budget_.give_back(bytes);
  call.charged -= bytes;
}

void ResponseWriter::reply(Call& call, std::string_view bytes) {
  const Encoding encoding = call.head.reply_encoding();
  if (encoding == Encoding::kIdentity) return reply(call, bytes, false);
  std::string deflated;
  const Status status = deflate(encoding, std::as_bytes(std::span(bytes)), &deflated);
  if (!status.ok()) return fail(call, status);
  reply_deflated(call, std::move(deflated));
}

void ResponseWriter::reply_deflated(Call& call, std::string bytes) {
  call.response = std::move(bytes);
  reply(call, call.response, true);
}

void ResponseWriter::reply(Call& call, std::string_view bytes, bool compressed) {
  if (const Status status = charge(call, bytes.size()); !status.ok()) return fail(call, status);
  call.sending = OutgoingMessage(bytes, compressed);
  call.ended = true;
  begin(call, compressed);
}

void ResponseWriter::push(Call& call, std::string message) {
  if (const Status status = charge(call, message.size()); !status.ok()) return finish(call, status);
  call.queued.push_back(std::move(message));
  begin(call, false);
}

void ResponseWriter::finish(Call& call, const Status& status) {
  if (call.ended) return;
  if (!status.ok() && !call.responding) return fail(call, status);
  call.ended = true;
  call.end = status;
  begin(call, false);
}

void ResponseWriter::fail(Call& call, const Status& status) {
  if (call.responding) return finish(call, status);
  call.responding = call.ended = true;
  const std::string text = travelling_text(status.message());
  nghttp2_nv headers[5] = {kHttpOk, kContentType, status_header(status.code())};
  std::size_t count = 3;
  if (!text.empty()) headers[count++] = copied("grpc-message", text);
  if (call.head.has_unknown_encoding()) headers[count++] = lasting("grpc-accept-encoding", kAcceptedEncodings);
  nghttp2_submit_response(session_, call.stream, headers, count, nullptr);
}

void ResponseWriter::fail_http(Call& call, int http_status) {
  call.responding = call.ended = true;
  const std::string text = std::to_string(http_status);
  const nghttp2_nv headers[] = {copied(":status", text)};
  nghttp2_submit_response(session_, call.stream, headers, std::size(headers), nullptr);
}

// Submits the headers, or has HTTP/2 ask again for what was not there when it asked.
void ResponseWriter::begin(Call& call, bool compressed) {
  if (call.responding) {
    if (std::exchange(call.deferred, false)) nghttp2_session_resume_data(session_, call.stream);
    return;
  }
  call.responding = true;
  const nghttp2_nv headers[] = {kHttpOk, kContentType,
                                lasting("grpc-encoding", encoding_name(call.head.reply_encoding()))};
  const nghttp2_data_provider body{{.ptr = &call}, read_body_};
  nghttp2_submit_response(session_, call.stream, headers, compressed ? 3 : 2, &body);
}

ssize_t ResponseWriter::next_part(Call& call, std::size_t size, std::uint32_t* flags) {
  if (call.sending.left == 0 && !call.queued.empty()) {
    give_back(call, call.response.size());
    call.response = std::move(call.queued.front());
    call.queued.erase(call.queued.begin());
    call.sending = OutgoingMessage(call.response, false);
  }
  if (call.sending.left == 0 && !call.ended) {
    call.deferred = true;
    return NGHTTP2_ERR_DEFERRED;
  }
  *flags |= NGHTTP2_DATA_FLAG_NO_COPY;
  if (size < call.sending.left) return static_cast<ssize_t>(size);
  if (call.ended && call.queued.empty()) {
    *flags |= NGHTTP2_DATA_FLAG_EOF | NGHTTP2_DATA_FLAG_NO_END_STREAM;
    submit_trailers(call);
  }
  return static_cast<ssize_t>(call.sending.left);
}

void ResponseWriter::submit_trailers(const Call& call) {
  const std::string text = travelling_text(call.end.message());
  const nghttp2_nv trailers[] = {status_header(call.end.code()), copied("grpc-message", text)};
  nghttp2_submit_trailer(session_, call.stream, trailers, text.empty() ? 1 : 2);
}

}  // namespace headrace
