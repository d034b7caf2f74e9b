// SPDX-License-Identifier: Apache-2.0
//
// ResponseWriter: responses as HTTP/2 has them: headers, messages, trailers; or an error, which is one header block.
//
// Thread safety: the thread of its connection's loop.
// Ownership: none; the session and the budget outlive it.
// Invariant: what waits to be sent is charged to the budget until its call is released.

#pragma once

#include <nghttp2/nghttp2.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/status.h"
#include "net/byte_budget.h"
#include "net/call.h"

namespace headrace {

class ResponseWriter {
 public:
  // `read_body` is called by HTTP/2 when it can send, with the call as its source, and calls next_part().
  ResponseWriter(ByteBudget& budget, nghttp2_data_source_read_callback read_body)
      : budget_(budget), read_body_(read_body) {}

  void set_session(nghttp2_session* session) { session_ = session; }

  // The only message of a response; `bytes` live as long as the call.
  void reply(Call& call, std::string_view bytes);
  // The same, in the encoding that the client wants.
  void reply_deflated(Call& call, std::string bytes);
  // One message of many.
  void push(Call& call, std::string message);
  // Ends what push() began, once it is sent; without a message before, an error is answered as fail() does.
  void finish(Call& call, const Status& status);
  void fail(Call& call, const Status& status);
  // What is not gRPC is answered in HTTP's own way.
  void fail_http(Call& call, int http_status);

  // Takes room for bytes that the call keeps; RESOURCE_EXHAUSTED where there is none.
  Status charge(Call& call, std::size_t bytes);
  void give_back(Call& call, std::size_t bytes);

  // How many of up to `size` bytes go into the next DATA frame.
  ssize_t next_part(Call& call, std::size_t size, std::uint32_t* flags);

 private:
  void reply(Call& call, std::string_view bytes, bool compressed);
  void begin(Call& call, bool compressed);
  void submit_trailers(const Call& call);

  ByteBudget& budget_;
  const nghttp2_data_source_read_callback read_body_;
  nghttp2_session* session_ = nullptr;
};

}  // namespace headrace
