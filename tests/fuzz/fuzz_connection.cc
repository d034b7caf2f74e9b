// SPDX-License-Identifier: Apache-2.0
//
// A connection whose client sends whatever the fuzzer thinks of, from legal calls down to raw bytes, in chunks of any
// size.  One thread does the work of the loop, the executor and the handlers in turn and waits for the codecs, so that
// an input always does the same.  Whatever came, nothing is left of a connection that has gone.

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <latch>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "connection_script.h"
#include "core/timer.h"
#include "fake_runner.h"
#include "fuzz_input.h"
#include "http2_frames.h"
#include "messages.h"
#include "model.h"
#include "net/compression.h"
#include "net/grpc_codec.h"
#include "net/http2_connection.h"
#include "net/server_loop.h"

namespace headrace {
namespace {

constexpr std::array kPaths = {"/tensorflow.serving.PredictionService/Predict",
                               "/grpc.health.v1.Health/Check",
                               "/grpc.health.v1.Health/Watch",
                               "/test.Service/Unary",
                               "/test.Service/PerMessage",
                               "/nobody.Serves/This"};

constexpr std::size_t kHandlersWaitingMax = 4;
constexpr std::size_t kNumbersMax = 10'000;
constexpr std::size_t kChunksMax = 64;  // that one step is cut into
constexpr int kCodings = 2;             // of one message: it is inflated, its reply deflated
constexpr int kTurnsMax = 64;           // of sending what there is

// The model of all inputs, without threads.
struct Served {
  Served() {
    LaneOptions options;
    options.policy.max_batch_size = 8;
    options.max_enqueued_batches = 4;
    lane = &model->add_lane({.name = "serving_default",
                             .inputs = {{.name = "x", .dtype = DType::kFloat, .shape = {}, .tensor_name = ""}},
                             .outputs = {{.name = "x", .dtype = DType::kFloat, .shape = {}, .tensor_name = ""}}},
                            options, runner, nullptr);
    router->add("digits", model);
  }

  // REQUIRES: nobody waits for a reply.
  void expect_empty() const {
    while (lane->was_waiting_rows() != 0) lane->run_next();
    lane->run_next();  // what was cancelled is let go of
    require(model->group().waiting_bytes == 0, "no bytes wait where no request does");
  }

  const SystemClock clock;
  const std::shared_ptr<Timer> timer = std::make_shared<Timer>(clock);
  const std::shared_ptr<FakeRunner> runner = std::make_shared<FakeRunner>();
  const std::shared_ptr<Model> model = std::make_shared<Model>("digits", 7, timer, clock);
  const std::shared_ptr<Router> router = std::make_shared<Router>();
  Lane* lane = nullptr;
};

// What connections of one set-up have in common; a loop without a thread.
struct Server {
  Server(const Served& served, std::uint8_t setup)
      : group(served.router, methods(), handlers, health, options(setup)), loop(group) {
    require(loop.open().ok(), "a loop opens");
  }

  static MethodTable methods() {
    MethodTable table;
    table.add(kPaths[3], Method::Kind::kHandler);
    table.add(kPaths[4], Method::Kind::kHandlerStream);
    return table;
  }

  static GrpcServerOptions options(std::uint8_t setup) {
    GrpcServerOptions options;
    options.message_bytes_max = (setup & kSmallMessages) != 0 ? 1 << 10 : 1 << 20;
    options.buffered_bytes_max = (setup & kSmallBudget) != 0 ? 40 << 10 : 16 << 20;
    options.streams_max = (setup & kFewStreams) != 0 ? 2 : 64;
    options.header_bytes_max = (setup & kSmallHeaders) != 0 ? 512 : 16 << 10;
    return options;
  }

  HandlerQueue handlers{kHandlersWaitingMax};
  HealthTable health;
  LoopGroup group;
  ServerLoop loop;
};

class Session {
 public:
  Session(Served& served, Server& server, std::uint8_t setup)
      : served_(served), handlers_(server.handlers), health_(server.health), group_(server.group), loop_(server.loop) {
    served.runner->fail_with({});
    health_.set("", Serving::kServing);
    group_.phase = LoopGroup::Phase::kServing;
    int ends[2];
    require(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0, "sockets open");
    client_ = Descriptor(ends[0]);
    if ((setup & kSmallSendBuffer) != 0) {
      const int bytes = 1;
      ::setsockopt(ends[1], SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    }
    connection_ = std::make_unique<Http2Connection>(loop_, group_.stream_on(Descriptor(ends[1])));
    if ((setup & kWithoutPreface) != 0) return;
    send(kHttp2Preface);
    send(http2_frame(NGHTTP2_SETTINGS, 0, 0, ""));
  }

  ~Session() {
    connection_ = nullptr;
    require(loop_.calls().size() == 0, "a connection takes its calls along");
    require(group_.requests == 0, "no requests count where no call is");
    wait_codecs();
    take_inbox();
    served_.expect_empty();
    answer_handlers(false);
    take_inbox();
    require(group_.budget->was_taken() == 0, "no bytes are charged where no call is");
  }

  void step(FuzzInput& input) {
    act(input);
    for (int i = 0; uses_codecs_ && i < kCodings; ++i) {
      wait_codecs();
      turn();
    }
  }

  bool is_over() const { return connection_->is_closed(); }

 private:
  void act(FuzzInput& input) {
    switch (static_cast<Step>(input.byte() % static_cast<unsigned>(Step::kSteps))) {
      case Step::kOpen:
        return open(head(input));
      case Step::kOpenWith: {
        Head begun = head(input);
        uses_codecs_ = true;
        const std::string_view name = input.text();
        begun.block += hpack_header(name, input.text());
        return open(begun);
      }
      case Step::kOpenRaw: {
        const std::uint8_t flags = input.byte();
        return open({std::string(input.text()), flags});
      }
      case Step::kPredict: {
        const std::uint32_t to = stream(input);
        const std::uint8_t bits = input.byte();
        return send_message(to, bits, predict(numbers_of(input.number())));
      }
      case Step::kMessage: {
        const std::uint32_t to = stream(input);
        const std::uint8_t bits = input.byte();
        return send_message(to, bits, std::string(input.text()));
      }
      case Step::kData: {
        const std::uint32_t to = stream(input);
        const std::uint8_t flags = input.byte();
        return send(http2_frame(NGHTTP2_DATA, flags, to, input.text()));
      }
      case Step::kFrame: {
        const std::uint32_t to = stream(input);
        const std::uint8_t type = input.byte();
        const std::uint8_t flags = input.byte();
        return send(http2_frame(type, flags, to, input.text()));
      }
      case Step::kReset:
        return send(http2_frame(NGHTTP2_RST_STREAM, 0, stream(input), big_endian(NGHTTP2_CANCEL, 4)));
      case Step::kWindow: {
        const std::uint32_t to = stream(input);
        return send(http2_frame(NGHTTP2_WINDOW_UPDATE, 0, to, big_endian(64u * input.number(), 4)));
      }
      case Step::kSetting: {
        const std::uint8_t which = input.byte();
        return send(http2_frame(NGHTTP2_SETTINGS, 0, 0, big_endian(which, 2) + big_endian(64u * input.number(), 4)));
      }
      case Step::kRaw:
        return send(input.text());
      case Step::kRead:
        while (::recv(client_.fd(), buffer_.data(), buffer_.size(), 0) > 0) continue;
        return turn();
      case Step::kRun:
        served_.lane->run_next();
        return turn();
      case Step::kFailRuns:
        return served_.runner->fail_with((input.byte() & 1) != 0 ? Internal("as the fuzzer wants it") : Status());
      case Step::kHandle:
        answer_handlers((input.byte() & 1) != 0);
        return turn();
      case Step::kHealth:
        health_.set("", static_cast<Serving>(input.byte() % 3));
        return turn();
      case Step::kPhase:
        next_phase();
        return turn();
      case Step::kChunks:
        chunk_bytes_ = input.number();
        return;
      case Step::kSteps:
        return;
    }
  }

  struct Head {
    std::string block;
    std::uint8_t flags;
  };

  Head head(FuzzInput& input) {
    const std::string_view path = kPaths[input.byte() % kPaths.size()];
    const std::uint8_t bits = input.byte();
    const bool is_grpc = (bits & kHeadNotGrpc) == 0;
    uses_codecs_ = uses_codecs_ || (bits & (kHeadGzip | kHeadDeflate)) != 0;
    std::string block = hpack_call(path, is_grpc ? "application/grpc" : "text/html");
    if ((bits & kHeadGzip) != 0) block += hpack_header("grpc-encoding", "gzip");
    if ((bits & kHeadDeflate) != 0) block += hpack_header("grpc-encoding", "deflate");
    if ((bits & kHeadAcceptsGzip) != 0) block += hpack_header("grpc-accept-encoding", "identity, gzip");
    if ((bits & kHeadTimeout) != 0) block += hpack_header("grpc-timeout", "1n");
    const bool ends = (bits & kHeadEnds) != 0;
    return {block, static_cast<std::uint8_t>(NGHTTP2_FLAG_END_HEADERS | (ends ? NGHTTP2_FLAG_END_STREAM : 0))};
  }

  // Most requests are small, so that there are many.
  static std::size_t numbers_of(std::uint16_t choice) {
    return (choice & kManyNumbers) != 0 ? choice % kNumbersMax : choice % 64;
  }

  static std::string predict(std::size_t numbers) {
    return bytes_field(1, bytes_field(1, "digits")) +
           input("x", tensor_proto(DType::kFloat, {1, static_cast<std::int64_t>(numbers)},
                                   bytes_field(5, std::string(numbers * sizeof(float), 'x'))));
  }

  void open(const Head& begun) {
    send(http2_frame(NGHTTP2_HEADERS, begun.flags, 2 * opened_ + 1, begun.block));
    ++opened_;
  }

  std::uint32_t stream(FuzzInput& input) const { return 2 * (input.byte() % (opened_ + 1)) + 1; }

  void send_message(std::uint32_t to, std::uint8_t bits, std::string message) {
    bool compressed = (bits & kMessageFlagged) != 0;
    for (const auto& [bit, encoding] :
         {std::pair(kMessageGzip, Encoding::kGzip), {kMessageDeflate, Encoding::kDeflate}}) {
      if ((bits & bit) == 0) continue;
      const std::string plain = std::exchange(message, {});
      require(deflate(encoding, std::as_bytes(std::span(plain)), &message).ok(), "every message can be compressed");
      compressed = true;
    }
    std::string bytes =
        static_cast<char>(compressed) + big_endian(static_cast<std::uint32_t>(message.size()), 4) + message;
    if ((bits & kMessageTwice) != 0) bytes += bytes;
    constexpr std::size_t kFrameBytes = 16'384;
    for (std::size_t at = 0; at < bytes.size(); at += kFrameBytes) {
      const bool ends = (bits & kMessageEnds) != 0 && at + kFrameBytes >= bytes.size();
      send(http2_frame(NGHTTP2_DATA, ends ? NGHTTP2_FLAG_END_STREAM : 0, to,
                       std::string_view(bytes).substr(at, kFrameBytes)));
    }
  }

  // The server gets the bytes a chunk at a time, and does after each what its loop would.
  void send(std::string_view bytes) {
    const std::size_t chunk = std::max({chunk_bytes_, bytes.size() / kChunksMax, std::size_t{1}});
    while (!bytes.empty() && !is_over()) {
      const std::string_view part = bytes.substr(0, chunk_bytes_ == 0 ? bytes.size() : chunk);
      const ssize_t sent = ::send(client_.fd(), part.data(), part.size(), MSG_NOSIGNAL);
      if (sent <= 0) return;  // the server reads no more for now: a client that goes on regardless
      bytes.remove_prefix(static_cast<std::size_t>(sent));
      turn();
    }
  }

  // As ServerLoop's.
  void turn() {
    if (connection_->wants_to_receive() && !is_over()) connection_->receive(buffer_);
    loop_.dispatcher().announce();
    take_inbox();
    for (int i = 0; i < kTurnsMax && !is_over() && connection_->send(); ++i) continue;
  }

  void take_inbox() {
    ReplyInbox::Taken taken;
    loop_.inbox()->take(&taken);
    for (const RequestPtr& reply : taken.replies) {
      Call* call = loop_.calls().find(reply->token);
      if (call != nullptr && call->state == Call::State::kWaiting && call->request == reply)
        call->connection->reply(*call);
    }
    for (ReplyInbox::Answer& answer : taken.answers) {
      Call* call = loop_.calls().find(answer.token);
      if (call != nullptr && call->state == Call::State::kWaiting)
        call->connection->answer(*call, answer.status, std::move(answer.response));
    }
    for (ReplyInbox::Resumption& resumption : taken.resumptions) {
      Call* call = loop_.calls().find(resumption.token);
      if (call != nullptr && call->state == Call::State::kWaiting) resumption.then(*call);
    }
  }

  // Until the pool has done what it was given: each of its threads comes here once it has.
  void wait_codecs() {
    const auto all = std::make_shared<std::latch>(LoopGroup::kCodecThreads);
    for (int i = 0; i < LoopGroup::kCodecThreads; ++i) group_.codecs.run([all] { all->arrive_and_wait(); });
    all->wait();
  }

  // Echoes what waits for the handlers.
  void answer_handlers(bool fail) {
    bool reached = false;
    auto last = std::make_unique<HandlerCall>("", Message::try_allocate(0, group_.budget, nullptr),
                                              [&](const Status&, std::string_view) { reached = true; });
    const auto answer_next = [&] {
      const std::unique_ptr<HandlerCall> call = handlers_.next();
      call->answer(fail ? Internal("as the fuzzer wants it") : Status(), call->message());
    };
    while (!handlers_.push(last).ok()) answer_next();
    while (!reached) answer_next();
  }

  void next_phase() {
    using Phase = LoopGroup::Phase;
    switch (group_.phase.load()) {
      case Phase::kServing:
        group_.phase = Phase::kRefusing;
        return;
      case Phase::kRefusing:
        group_.phase = Phase::kDraining;
        return connection_->announce_shutdown();
      case Phase::kDraining:
        group_.phase = Phase::kEnding;
        return connection_->end();
      case Phase::kEnding:
        return;
    }
  }

  Served& served_;
  HandlerQueue& handlers_;
  HealthTable& health_;
  LoopGroup& group_;
  ServerLoop& loop_;
  Descriptor client_;
  std::unique_ptr<Http2Connection> connection_;
  std::uint32_t opened_ = 0;
  std::size_t chunk_bytes_ = 0;
  bool uses_codecs_ = false;
  static inline std::vector<std::byte> buffer_ = std::vector<std::byte>(256 << 10);
};

}  // namespace
}  // namespace headrace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static headrace::Served served;
  static std::map<std::uint8_t, std::unique_ptr<headrace::Server>> servers;
  headrace::FuzzInput input(data, size);
  const std::uint8_t setup = input.byte() % headrace::kSetups;
  std::unique_ptr<headrace::Server>& server = servers[setup];
  if (server == nullptr) server = std::make_unique<headrace::Server>(served, setup);
  headrace::Session session(served, *server, setup);
  while (!input.empty() && !session.is_over()) session.step(input);
  return 0;
}
