// SPDX-License-Identifier: Apache-2.0
//
// Stage 1 of 8: read the headers of a call.

#include "net/request_head.h"

#include "net/grpc_codec.h"

namespace headrace {
namespace {

// What HTTP/2 counts for each header beside its name and value.
constexpr std::size_t kHeaderBytes = 32;

}  // namespace

void RequestHead::add(std::string_view name, std::string_view value, const MethodTable& methods) {
  bytes_ += name.size() + value.size() + kHeaderBytes;
  switch (name.size()) {  // no two of these names are equally long, but for the last
    case 5:
      if (name == ":path") method_ = methods.find(value);
      break;
    case 7:
      if (name == ":method") is_post_ = value == "POST";
      break;
    case 12:
      if (name == "content-type") is_grpc_ = is_grpc_content_type(value);
      if (name != "grpc-timeout") break;
      timeout_ns_ = parse_grpc_timeout_ns(value);
      timeout_is_malformed_ = !timeout_ns_;
      break;
    case 13:
      if (name != "grpc-encoding") break;
      encoding_ = parse_encoding(value);
      if (!encoding_) unknown_encoding_ = value;
      break;
    case 20:
      if (name == "grpc-accept-encoding") accepted_ = encodings_in(value);
      break;
    default:
      break;
  }
}

int RequestHead::http_error() const {
  if (!is_post_) return 405;
  return is_grpc_ ? 0 : 415;
}

Status RequestHead::check(std::size_t bytes_max) const {
  if (bytes_ > bytes_max)
    return ResourceExhausted("received metadata size exceeds limit: " + std::to_string(bytes_) + " bytes, limit " +
                             std::to_string(bytes_max));
  if (timeout_is_malformed_) return Internal("Error parsing 'grpc-timeout' metadata");
  if (method_ == nullptr) return {Code::kUnimplemented, "Method not found!"};
  if (!encoding_)
    return {Code::kUnimplemented, "Compression algorithm '" + unknown_encoding_ + "' is unknown; this server has " +
                                      std::string(kAcceptedEncodings)};
  return {};
}

}  // namespace headrace
