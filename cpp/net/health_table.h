// SPDX-License-Identifier: Apache-2.0
//
// HealthTable: grpc.health.v1 without a transport: who is being served, and who is to be told when that changes.
//
// Thread safety: every function from any thread; watchers are called under the table's mutex, and must not block or
// call
//   back.

#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "core/status.h"

namespace headrace {

// The numbers are grpc.health.v1.HealthCheckResponse.ServingStatus's.
enum class Serving { kUnknown = 0, kServing = 1, kNotServing = 2, kServiceUnknown = 3 };

class HealthTable {
 public:
  using Watcher = std::function<void(std::string_view response)>;

  void set(const std::string& service, Serving serving);

  // A HealthCheckRequest in, a HealthCheckResponse out; NOT_FOUND for a service that is not in the table,
  // INVALID_ARGUMENT for what is no HealthCheckRequest.
  Status check(std::string_view request, std::string* response) const;

  // Calls `watcher` with the response now, and at every change, until unwatch() of the number that it gives.
  Status watch(std::string_view request, Watcher watcher, std::uint64_t* number);
  void unwatch(std::uint64_t number);

 private:
  struct Watch {
    std::string service;
    Watcher watcher;
  };

  mutable std::mutex mutex_;
  std::map<std::string, Serving, std::less<>> services_;  // guarded by mutex_
  std::map<std::uint64_t, Watch> watches_;                // guarded by mutex_
  std::uint64_t next_ = 0;                                // guarded by mutex_
};

}  // namespace headrace
