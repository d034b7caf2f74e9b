// SPDX-License-Identifier: Apache-2.0
//
// Any header block as the head of a call, any text as grpc-message, and any bytes as the messages of a stream.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "fuzz_input.h"
#include "net/byte_budget.h"
#include "net/grpc_codec.h"
#include "net/health_table.h"
#include "net/message_reader.h"
#include "net/method_table.h"
#include "net/request_head.h"
#include "wire/proto.h"

namespace headrace {
namespace {

constexpr std::size_t kHeadBytesMax = 16 << 10;
constexpr std::size_t kMessageBytesMost = 1 << 16;

void read_head(FuzzInput& input) {
  static const MethodTable methods = [] {
    MethodTable table;
    table.add("/test.Service/Unary", Method::Kind::kHandler);
    return table;
  }();
  RequestHead head;
  std::size_t bytes = 0;
  while (!input.empty()) {
    const std::string_view name = input.text(), value = input.text();
    head.add(name, value, methods);
    bytes += name.size() + value.size();
  }
  require(head.bytes() >= bytes, "every header counts");
  const Status status = head.check(kHeadBytesMax);
  if (head.http_error() != 0) return;
  require(status.ok() != status.message().size() > 0, "errors, and only they, say what is wrong");
  if (!status.ok()) return;
  require(!head.method().path.empty(), "a call that is let in has a method");
  require(!head.has_unknown_encoding() && bytes <= kHeadBytesMax, "a call that is let in can be read");
  if (head.encoding() == Encoding::kIdentity)
    require(head.reply_encoding() == Encoding::kIdentity, "replies are compressed where requests are");
  if (head.timeout_ns()) require(*head.timeout_ns() >= 0, "nothing is due before it came");
}

std::string percent_decoded(std::string_view text) {
  std::string decoded;
  for (std::size_t i = 0; i < text.size(); ++i) {
    require(text[i] >= ' ' && text[i] <= '~', "grpc-message is printable ASCII");
    if (text[i] != '%') {
      decoded += text[i];
      continue;
    }
    require(i + 2 < text.size(), "a percent sign has two digits");
    decoded += static_cast<char>(std::stoi(std::string(text.substr(i + 1, 2)), nullptr, 16));
    i += 2;
  }
  return decoded;
}

void encode_text(std::string_view text) {
  const std::string decoded = percent_decoded(percent_encoded(text));
  require(is_utf8(decoded), "grpc-message is UTF-8");
  if (is_utf8(text)) require(decoded == text, "what is UTF-8 travels unchanged");
}

struct Messages {
  std::vector<std::string> whole;
  Status status;
  bool ended_within = false;
};

Messages read_messages(std::string_view bytes, std::size_t chunk, bool may_be_compressed,
                       const std::shared_ptr<ByteBudget>& budget) {
  Messages messages;
  MessageReader reader;
  for (std::size_t at = 0; at < bytes.size() && messages.status.ok(); at += chunk) {
    auto data = std::as_bytes(std::span(bytes.substr(at, chunk)));
    do {
      messages.status = reader.read(&data, {kMessageBytesMost, may_be_compressed}, budget, nullptr);
      if (!messages.status.ok() || !reader.has_message()) break;
      bool compressed = false;
      const MessagePtr message = reader.take(&compressed);
      require(!compressed || may_be_compressed, "nothing is compressed without an encoding");
      messages.whole.emplace_back(reinterpret_cast<const char*>(message->data()), message->size());
    } while (!data.empty());
  }
  messages.ended_within = reader.in_message();
  return messages;
}

// However a stream is cut, it has the same messages.
void read_stream(FuzzInput& input) {
  const bool may_be_compressed = (input.byte() & 1) != 0;
  const std::size_t chunk = std::max<std::size_t>(input.byte(), 1);
  const std::string_view bytes = input.rest();
  const auto budget = std::make_shared<ByteBudget>(std::size_t{1} << 30);
  const Messages cut = read_messages(bytes, chunk, may_be_compressed, budget);
  const Messages uncut = read_messages(bytes, std::max<std::size_t>(bytes.size(), 1), may_be_compressed, budget);
  require(
      cut.whole == uncut.whole && cut.status.code() == uncut.status.code() && cut.ended_within == uncut.ended_within,
      "chunks make no difference");
  require(budget->was_taken() == 0, "messages give their bytes back");
}

void ask_health(std::string_view message) {
  HealthTable table;
  table.set("", Serving::kServing);
  std::string response, watched;
  std::uint64_t number = 0;
  const Status checked = table.check(message, &response);
  const Status watching = table.watch(
      message, [&](std::string_view told) { watched = told; }, &number);
  require(watching.ok() == (checked.code() != Code::kInvalidArgument), "what can be checked can be watched");
  if (checked.ok()) require(watched == response, "both say the same");
  if (watching.ok()) table.unwatch(number);
}

}  // namespace
}  // namespace headrace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace headrace;
  FuzzInput input(data, size);
  switch (input.byte() % 4) {
    case 0:
      read_head(input);
      break;
    case 1:
      encode_text(input.rest());
      break;
    case 2:
      read_stream(input);
      break;
    default:
      ask_health(input.rest());
      break;
  }
  return 0;
}
