// SPDX-License-Identifier: Apache-2.0
//
// make_seeds DIRECTORY: writes what each fuzz target starts from, into a directory of the target's name.

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "connection_script.h"
#include "fuzz_input.h"
#include "messages.h"
#include "net/compression.h"
#include "predict_signatures.h"

namespace headrace {
namespace {

using Seeds = std::vector<std::string>;

// ---- fuzz_connection ------------------------------------------------------------------------------------------------

enum Path : std::uint8_t { kPredictPath, kCheckPath, kWatchPath, kUnaryPath, kPerMessagePath, kUnknownPath };

class Connection : public FuzzScript {
 public:
  explicit Connection(std::uint8_t setup = 0) { byte(setup); }

  Connection& step(Step step, std::initializer_list<unsigned> bytes = {}) {
    byte(static_cast<std::uint8_t>(step));
    for (const unsigned value : bytes) byte(static_cast<std::uint8_t>(value));
    return *this;
  }
  Connection& chunks(std::uint16_t bytes) {
    step(Step::kChunks).number(bytes);
    return *this;
  }
  Connection& open(Path path, unsigned bits = 0) { return step(Step::kOpen, {path, bits}); }
  Connection& open_with(std::string_view name, std::string_view value) {
    step(Step::kOpenWith, {kPredictPath, 0u}).text(name).text(value);
    return *this;
  }
  Connection& predict(unsigned stream, std::uint16_t numbers, unsigned bits = kMessageEnds) {
    step(Step::kPredict, {stream, bits}).number(numbers < 64 ? numbers : numbers | kManyNumbers);
    return *this;
  }
  Connection& message(unsigned stream, std::string_view message, unsigned bits = kMessageEnds) {
    step(Step::kMessage, {stream, bits}).text(message);
    return *this;
  }
  Connection& data(unsigned stream, unsigned flags, std::string_view bytes) {
    step(Step::kData, {stream, flags}).text(bytes);
    return *this;
  }
  Connection& frame(unsigned stream, unsigned type, unsigned flags, std::string_view payload) {
    step(Step::kFrame, {stream, type, flags}).text(payload);
    return *this;
  }
  Connection& raw(std::string_view bytes) {
    step(Step::kRaw).text(bytes);
    return *this;
  }
  Connection& setting(unsigned which, std::uint16_t value) {
    step(Step::kSetting, {which}).number(value);
    return *this;
  }
  Connection& run() { return step(Step::kRun).step(Step::kRead); }
  Connection& handle(bool fail = false) { return step(Step::kHandle, {fail}).step(Step::kRead); }
};

// HTTP/2's numbers (RFC 9113, 6).
enum Frame : unsigned {
  kDataFrame,
  kHeadersFrame,
  kPriority,
  kRstStream,
  kSettings,
  kPushPromise,
  kPing,
  kGoaway,
  kWindowUpdate,
  kContinuation
};
constexpr unsigned kEndStream = 1, kAck = 1, kEndHeaders = 4, kPadded = 8;

Seeds connection_seeds() {
  using namespace std::string_literals;
  std::vector<FuzzScript> scripts;
  for (const unsigned chunk : {0, 1, 7, 100}) {
    scripts.push_back(Connection().chunks(static_cast<std::uint16_t>(chunk)).open(kPredictPath).predict(0, 1).run());
    scripts.push_back(Connection()
                          .chunks(static_cast<std::uint16_t>(chunk))
                          .open(kPerMessagePath)
                          .message(0, "one", 0)
                          .message(0, "two")
                          .handle()
                          .handle());
  }
  for (const std::uint16_t numbers : {0, 100, 5'000, 9'999})
    scripts.push_back(Connection().open(kPredictPath).predict(0, numbers).run().run());
  for (const int bits : {kHeadGzip | kHeadAcceptsGzip, int{kHeadDeflate}, int{kHeadGzip}}) {
    const unsigned as = kMessageEnds | ((bits & kHeadGzip) != 0 ? kMessageGzip : kMessageDeflate);
    scripts.push_back(Connection().open(kPredictPath, static_cast<unsigned>(bits)).predict(0, 3'000, as).run());
    scripts.push_back(
        Connection(kSmallMessages).open(kPredictPath, static_cast<unsigned>(bits)).predict(0, 9'999, as).run());
    scripts.push_back(Connection()
                          .open(kUnaryPath, static_cast<unsigned>(bits))
                          .message(0, "no such format", kMessageEnds | kMessageFlagged));
  }
  // Many at once; some are reset, some wait for the end of their message, and the client then reads.
  Connection many;
  for (unsigned i = 0; i < 8; ++i) many.open(kPredictPath).predict(i, 2);
  many.step(Step::kReset, {2}).step(Step::kReset, {5}).open(kPredictPath).data(8, 0, "\0\0\0\1\0abc"s);
  scripts.push_back(many.run().run());
  // Nobody reads: a small buffer, large answers, then a reset.
  Connection unread(kSmallSendBuffer);
  unread.setting(4, 0xFFFF);
  for (unsigned i = 0; i < 3; ++i) unread.open(kPredictPath).predict(i, 9'999).step(Step::kRun);
  unread.step(Step::kReset, {1}).run();
  scripts.push_back(unread.step(Step::kReset, {0}).step(Step::kRead).step(Step::kRead));
  scripts.push_back(
      Connection(kSmallBudget).open(kPredictPath).predict(0, 9'000).open(kPredictPath).predict(1, 9'000).run());
  scripts.push_back(
      Connection(kFewStreams).open(kPredictPath).open(kPredictPath).open(kPredictPath).predict(2, 1).run());
  // Watch, and what is not to be compressed, not there, not gRPC, late, refused.
  scripts.push_back(
      Connection().open(kWatchPath).message(0, "").step(Step::kHealth, {0}).step(Step::kHealth, {2}).step(Step::kRead));
  scripts.push_back(Connection().open(kCheckPath).message(0, bytes_field(1, "digits")).step(Step::kRead));
  scripts.push_back(Connection().open(kUnknownPath).message(0, "").open(kPredictPath, kHeadNotGrpc).predict(1, 1));
  scripts.push_back(
      Connection().open(kPredictPath, kHeadEnds).open(kPerMessagePath, kHeadEnds).open(kWatchPath, kHeadEnds));
  scripts.push_back(Connection().open(kPredictPath, kHeadTimeout).predict(0, 1).run());
  scripts.push_back(Connection().open(kPredictPath).predict(0, 1, kMessageEnds | kMessageTwice).run());
  scripts.push_back(
      Connection().open(kPerMessagePath).message(0, "twice", kMessageTwice).handle().handle(true).step(Step::kRead));
  scripts.push_back(
      Connection().open(kUnaryPath).message(0, "echo").handle(true).open(kUnaryPath).message(1, "").handle());
  scripts.push_back(Connection().step(Step::kFailRuns, {1}).open(kPredictPath).predict(0, 1).run());
  scripts.push_back(
      Connection().open_with("grpc-timeout", "10S").predict(0, 1).open_with("x-bin", "AAEC").predict(1, 1).run());
  scripts.push_back(Connection().open_with("grpc-encoding", "snappy").open_with("grpc-timeout", "soon").predict(1, 1));
  scripts.push_back(
      Connection(kSmallHeaders).open_with("x", std::string(400, 'x')).open_with("x", std::string(4'000, 'x')));
  // Stopping, with calls in every state.
  Connection stopped;
  stopped.open(kPredictPath)
      .predict(0, 1)
      .open(kPredictPath)
      .open(kWatchPath)
      .message(2, "")
      .open(kUnaryPath)
      .message(3, "");
  stopped.step(Step::kPhase).open(kPredictPath).predict(4, 1).step(Step::kPhase).run().step(Step::kPhase);
  scripts.push_back(stopped.handle().step(Step::kRead));
  // Frames of HTTP/2 itself.
  scripts.push_back(Connection().frame(0, kPing, 0, "12345678").frame(0, kSettings, kAck, "").step(Step::kRead));
  scripts.push_back(Connection().setting(1, 0).open(kPredictPath).frame(0, kPriority, 0, "\0\0\0\0\1"s));
  scripts.push_back(Connection().frame(0, kGoaway, 0, "\0\0\0\0\0\0\0\0"s).frame(0, kWindowUpdate, 0, "\0\0\0\0"s));
  scripts.push_back(Connection().open(kPredictPath).frame(0, kDataFrame, kPadded | kEndStream, "\3\0\0\0\0\0\0\0\0"s));
  Connection continued;
  continued.step(Step::kOpenRaw, {0}).text("\x83\x86");
  continued.frame(0, kContinuation, 0, "").frame(0, kContinuation, kEndHeaders, "\x84");
  scripts.push_back(continued);
  scripts.push_back(Connection().open(kPredictPath).frame(0, kHeadersFrame, kEndHeaders | kEndStream, ""));
  scripts.push_back(Connection().open(kPredictPath).frame(0, kPushPromise, kEndHeaders, "\0\0\0\2"s));
  scripts.push_back(Connection(kWithoutPreface).raw("GET / HTTP/1.1\r\nHost: here\r\n\r\n"));
  scripts.push_back(Connection(kWithoutPreface).raw("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").raw("\0\0\0\4\0\0\0\0\0"s));

  Seeds seeds;
  for (const FuzzScript& script : scripts) seeds.push_back(script.bytes());
  return seeds;
}

// ---- fuzz_predict ---------------------------------------------------------------------------------------------------

// A whole TensorProto for a spec, in one of the ways to spell its values.
std::string tensor_of(const TensorSpec& spec, std::mt19937& random, unsigned spelling) {
  const std::size_t rows = 1 + random() % 3;
  Shape shape = spec.shape.value_or(Shape{-1, 2});
  std::size_t count = 1;
  for (std::int64_t& dim : shape) {
    if (dim < 0) dim = static_cast<std::int64_t>(rows);
    count *= static_cast<std::size_t>(dim);
  }
  if (spec.dtype == DType::kString) {
    std::string values;
    for (std::size_t i = 0; i < count; ++i) values += bytes_field(8, std::string(i * 5, 's'));
    return tensor_proto(DType::kString, shape, values);
  }
  const DType dtype = spec.dtype == DType::kInvalid ? kTypes[random() % std::size(kTypes)].dtype : spec.dtype;
  for (const Type& type : kTypes) {
    if (type.dtype != dtype) continue;
    const std::string bytes = random_elements(type, count, random);
    switch (spelling) {
      case 0:
        return tensor_proto(dtype, shape, bytes_field(4, bytes));
      case 1:
        return tensor_proto(dtype, shape, packed_field(type, bytes));
      case 2:
        return tensor_proto(dtype, shape, mixed_fields(type, bytes, random));
      default:  // one value for all
        return tensor_proto(dtype, shape, packed_field(type, bytes.substr(0, type.width)));
    }
  }
  return {};
}

std::string predict_message(const Signature& signature, std::mt19937& random, unsigned spelling, bool filtered) {
  std::string message = bytes_field(1, bytes_field(1, "fuzzed") + bytes_field(3, signature.name));
  for (const TensorSpec& spec : signature.inputs) message += input(spec.name, tensor_of(spec, random, spelling));
  if (filtered) message += bytes_field(3, signature.outputs.back().name);
  return message;
}

Seeds predict_seeds() {
  Seeds seeds;
  std::mt19937 random(1);
  const std::vector<Signature> signatures = predict_signatures();
  for (std::size_t i = 0; i < signatures.size(); ++i)
    for (unsigned spelling = 0; spelling < 4; ++spelling)
      seeds.push_back(FuzzScript()
                          .byte(static_cast<std::uint8_t>(i))
                          .text(predict_message(signatures[i], random, spelling, spelling == 1))
                          .rest(predict_message(signatures[i], random, (spelling + 1) % 4, false))
                          .bytes());
  return seeds;
}

// ---- fuzz_head ------------------------------------------------------------------------------------------------------

std::string head_seed(const std::vector<std::pair<std::string, std::string>>& more) {
  FuzzScript script;
  script.byte(0);
  script.text(":method")
      .text("POST")
      .text(":path")
      .text("/test.Service/Unary")
      .text("content-type")
      .text("application/grpc+proto");
  for (const auto& [name, value] : more) script.text(name).text(value);
  return script.bytes();
}

Seeds head_seeds() {
  using namespace std::string_literals;
  Seeds seeds = {head_seed({}), head_seed({{"grpc-encoding", "snappy"}}),
                 head_seed({{"grpc-encoding", "gzip"}, {"grpc-accept-encoding", "identity, deflate ,gzip"}})};
  for (const char* timeout : {"1H", "99999999H", "10M", "5S", "100m", "7u", "1n", "S", "999999999S", "-1S"})
    seeds.push_back(head_seed({{"grpc-timeout", timeout}}));
  for (const char* text : {"plain", "50% of \xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80", "\xED\xA0\x80\xC0\x80\n\x7F"})
    seeds.push_back(FuzzScript().byte(1).rest(text).bytes());
  for (const std::string& stream : {"\0\0\0\0\3abc\0\0\0\0\0\0\0\0\0\1d"s, "\1\0\0\0\2zz"s, "\2\0\0\0\0"s,
                                    "\0\0\1\0\0"s + std::string(100, 'x'), "\0\xFF\xFF\xFF\xFF"s})
    seeds.push_back(FuzzScript().byte(2).byte(1).byte(3).rest(stream).bytes());
  for (const std::string& message : {""s, bytes_field(1, ""), bytes_field(1, "digits"), bytes_field(1, "\xFF")})
    seeds.push_back(FuzzScript().byte(3).rest(message).bytes());
  return seeds;
}

// ---- fuzz_compression -----------------------------------------------------------------------------------------------

Seeds compression_seeds() {
  Seeds seeds;
  for (const Encoding encoding : {Encoding::kDeflate, Encoding::kGzip}) {
    for (const std::string& plain : {std::string(), std::string("short"), std::string(100'000, 'z')}) {
      std::string deflated;
      require(deflate(encoding, std::as_bytes(std::span(plain)), &deflated).ok(), "a seed can be deflated");
      seeds.push_back(FuzzScript().byte(encoding == Encoding::kGzip).number(1'000).rest(deflated).bytes());
    }
  }
  return seeds;
}

void write(const std::filesystem::path& directory, const Seeds& seeds) {
  std::filesystem::create_directories(directory);
  for (std::size_t i = 0; i < seeds.size(); ++i) {
    std::ofstream file(directory / ("seed-" + std::to_string(i)), std::ios::binary);
    file << seeds[i];
    require(file.good(), "seeds can be written");
  }
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  using namespace headrace;
  if (argc != 2) {
    std::fprintf(stderr, "usage: make_seeds DIRECTORY\n");
    return 2;
  }
  const std::filesystem::path directory(argv[1]);
  write(directory / "fuzz_connection", connection_seeds());
  write(directory / "fuzz_predict", predict_seeds());
  write(directory / "fuzz_head", head_seeds());
  write(directory / "fuzz_compression", compression_seeds());
  return 0;
}
