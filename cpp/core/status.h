// SPDX-License-Identifier: Apache-2.0
//
// Status: how a call ended.  The codes are gRPC's, so that every front end looks them up once.
//
// Thread safety: a value; share it as you would a std::string.

#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>

namespace headrace {

enum class Code : int {
  kOk = 0,
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kNotFound = 5,
  kAlreadyExists = 6,
  kPermissionDenied = 7,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kAborted = 10,
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
  kDataLoss = 15,
  kUnauthenticated = 16,
};

class [[nodiscard]] Status {
 public:
  Status() = default;  // OK
  Status(Code code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == Code::kOk; }
  Code code() const { return code_; }
  const std::string& message() const { return message_; }

  // What a front end may know more about an error than its text: the exception of a callable.  Null for most.
  const std::shared_ptr<const void>& cause() const { return cause_; }
  void set_cause(std::shared_ptr<const void> cause) { cause_ = std::move(cause); }

 private:
  Code code_ = Code::kOk;
  std::string message_;
  std::shared_ptr<const void> cause_;
};

inline Status InvalidArgument(std::string message) { return {Code::kInvalidArgument, std::move(message)}; }
inline Status FailedPrecondition(std::string message) { return {Code::kFailedPrecondition, std::move(message)}; }
inline Status NotFound(std::string message) { return {Code::kNotFound, std::move(message)}; }
inline Status Unavailable(std::string message) { return {Code::kUnavailable, std::move(message)}; }
inline Status Internal(std::string message) { return {Code::kInternal, std::move(message)}; }
inline Status ResourceExhausted(std::string message) { return {Code::kResourceExhausted, std::move(message)}; }
inline Status DeadlineExceeded(std::string message) { return {Code::kDeadlineExceeded, std::move(message)}; }
inline Status Cancelled(std::string message) { return {Code::kCancelled, std::move(message)}; }

}  // namespace headrace
