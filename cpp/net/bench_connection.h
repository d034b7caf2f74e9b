// SPDX-License-Identifier: Apache-2.0
//
// BenchConnection: one HTTP/2 connection of the load generator, and the unary gRPC calls under way on it.
//
// Thread safety: none; a connection belongs to one thread.
// Ownership: owns its socket and its calls; the call's body and the listener outlive it.
// Progress: nothing blocks but open(), which has a limit.  Calls beyond what the server allows at a time wait in here.
// Invariants: every call that was started is told to the listener once, at the latest by close().

#pragma once

#include <nghttp2/nghttp2.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "net/grpc_codec.h"

namespace headrace {

// Where to connect to, and what every call says.
struct BenchTarget {
  std::string host;
  std::string port;
  std::string path;           // "/package.Service/Method"
  std::string timeout{};      // grpc-timeout, if not empty
  bool keep_answers = false;  // whether a call keeps the message that answered it

  std::string address() const { return (host.find(':') == host.npos ? host : "[" + host + "]") + ":" + port; }
};

struct BenchCall {
  // What its owner says of it.
  std::int64_t intended_ns = 0;
  std::size_t message = 0;

  // How it ended.
  Code code = Code::kUnknown;
  std::string text;    // grpc-message as it came, still percent-encoded, or what was wrong
  std::string answer;  // with keep_answers

 private:
  friend class BenchConnection;

  bool live_ = false;
  std::string_view body_;  // what is left to send
  bool has_grpc_status_ = false;
  int http_status_ = 0;
  std::size_t received_bytes_ = 0;
  std::byte prefix_[MessagePrefix::kBytes];
};

class BenchListener {
 public:
  virtual void on_answered(BenchCall& call) = 0;

 protected:
  ~BenchListener() = default;
};

class BenchConnection {
 public:
  BenchConnection(const BenchTarget& target, BenchListener& listener);
  BenchConnection(const BenchConnection&) = delete;
  BenchConnection& operator=(const BenchConnection&) = delete;
  ~BenchConnection();

  // Connects, and waits for the server's first word; UNAVAILABLE, which names the address, where that fails or takes
  // longer than `limit_ns`.
  Status open(std::int64_t limit_ns);

  // Gives up the calls under way, each of which ends with `why`.
  void close(const Status& why);

  // False once the server has said that it takes no more: the calls under way go on.
  bool is_taking() const { return fd_ >= 0 && nghttp2_session_check_request_allowed(session_) != 0; }

  // `body` is a message with its prefix.  REQUIRES: is_taking().
  void start(std::int64_t intended_ns, std::size_t message, std::string_view body);

  // Sends what can be sent, and takes in what has come.  An error means that the connection is lost: close() it.
  Status send();
  Status receive(std::span<std::byte> buffer);

  int fileno() const { return fd_; }
  bool wants_to_send() const { return sent_ < unsent_.size(); }
  std::size_t in_flight() const { return in_flight_; }

 private:
  static BenchConnection& from(void* user_data) { return *static_cast<BenchConnection*>(user_data); }
  static ssize_t on_body(nghttp2_session*, std::int32_t, std::uint8_t* to, std::size_t bytes, std::uint32_t* flags,
                         nghttp2_data_source* source, void*);
  static int on_header(nghttp2_session* session, const nghttp2_frame* frame, const std::uint8_t* name,
                       std::size_t name_bytes, const std::uint8_t* value, std::size_t value_bytes, std::uint8_t, void*);
  static int on_data(nghttp2_session* session, std::uint8_t, std::int32_t stream, const std::uint8_t* data,
                     std::size_t bytes, void* user_data);
  static int on_frame(nghttp2_session*, const nghttp2_frame* frame, void* user_data);
  static int on_closed(nghttp2_session* session, std::int32_t stream, std::uint32_t error, void* user_data);

  Status connect_socket(std::int64_t limit_ns);
  Status wait_for_greeting(std::int64_t deadline_ns);
  Status lost(std::string_view why) const;
  static void settle(BenchCall& call, std::uint32_t error);
  void finish(BenchCall& call);

  const BenchTarget& target_;
  BenchListener& listener_;
  const std::string authority_;
  std::vector<nghttp2_nv> headers_;
  int fd_ = -1;
  nghttp2_session* session_ = nullptr;
  bool greeted_ = false;  // whether the other end has proved to be an HTTP/2 server
  std::string unsent_;    // frames, of which
  std::size_t sent_ = 0;  // so many bytes are sent
  std::vector<std::unique_ptr<BenchCall>> calls_;
  std::vector<BenchCall*> idle_;
  std::size_t in_flight_ = 0;
};

}  // namespace headrace
