// SPDX-License-Identifier: Apache-2.0
//
// RequestHead: what the header block of a call says.
//
// Thread safety: one thread at a time.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/status.h"
#include "net/compression.h"
#include "net/method_table.h"

namespace headrace {

class RequestHead {
 public:
  // One header; what the server does not know is let pass.
  void add(std::string_view name, std::string_view value, const MethodTable& methods);

  // Of all headers, counted as SETTINGS_MAX_HEADER_LIST_SIZE counts them.
  std::size_t bytes() const { return bytes_; }

  // The HTTP status that says why this is no call of gRPC's; 0 for one that is.
  int http_error() const;
  // What to answer the call with before its message is looked at; OK for most.
  Status check(std::size_t bytes_max) const;
  // Whether the answer has to say which encodings there are.
  bool has_unknown_encoding() const { return !encoding_; }

  // REQUIRES, as the next three: check() was OK.
  const Method& method() const { return *method_; }
  Encoding encoding() const { return *encoding_; }
  // How replies are to be encoded: as the request is, if the client says that it takes that.
  Encoding reply_encoding() const { return (accepted_ & bit_of(*encoding_)) != 0 ? *encoding_ : Encoding::kIdentity; }
  std::optional<std::int64_t> timeout_ns() const { return timeout_ns_; }

 private:
  std::size_t bytes_ = 0;
  bool is_post_ = false;
  bool is_grpc_ = false;
  const Method* method_ = nullptr;
  std::optional<Encoding> encoding_ = Encoding::kIdentity;
  std::string unknown_encoding_;
  Encodings accepted_ = 0;
  std::optional<std::int64_t> timeout_ns_;
  bool timeout_is_malformed_ = false;
};

}  // namespace headrace
