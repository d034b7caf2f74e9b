// SPDX-License-Identifier: Apache-2.0
//
// BenchClient: the load generator, which sends unary gRPC calls as a plan says and measures how they are answered.
//
// A closed loop keeps a number of calls under way; an open loop sends each at its time, however slow the server is.  A
// latency counts from the time at which the call was meant to be sent, so that a server's pauses are not left out.
//
// Thread safety: start() and take_report() beside no other call; everything else from any thread.
// Ownership: owns its threads, which end at the latest with it.
// Progress: start() waits for connections, kOpenLimitNs for each at most; wait_for() as long as it is told.
// Invariants: every call of the plan is answered, failed, abandoned or unsent in the report.

#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/clock.h"
#include "core/status.h"
#include "net/bench_connection.h"
#include "net/bench_report.h"

namespace headrace {

struct BenchPlan {
  BenchTarget target;
  std::vector<std::string> messages;  // sent in turn; at least one
  int connections = 1;
  int threads = 1;  // at most one for each connection

  // A closed loop: so many calls under way, at least one for each connection, until the time is over or so many sent.
  int concurrency = 1;
  std::int64_t duration_ns = kNever;
  std::uint64_t requests = std::numeric_limits<std::uint64_t>::max();
  // An open loop, if there are any: when to send each call, from the start; in order.
  std::vector<std::int64_t> arrivals_ns;

  // Calls of the first so many nanoseconds are sent on top of the duration and the requests, and are not measured.
  std::int64_t warm_up_ns = 0;
  // How long to wait for answers after the last call, and for any answer at all.
  std::int64_t patience_ns = 10'000'000'000;
};

class BenchClient {
 public:
  static constexpr std::int64_t kOpenLimitNs = 5'000'000'000;

  // REQUIRES: what BenchPlan says.
  explicit BenchClient(BenchPlan plan);
  BenchClient(const BenchClient&) = delete;
  BenchClient& operator=(const BenchClient&) = delete;
  ~BenchClient();

  // Connects and begins.  REQUIRES: called once.
  Status start();

  // Whether the run is over.
  bool wait_for(std::int64_t limit_ns);

  // Ends the run; calls that are under way are abandoned.
  void stop();

  struct Progress {
    std::uint64_t answered = 0;
    std::uint64_t failed = 0;  // of these
    std::int64_t elapsed_ns = 0;
  };
  Progress was_progress() const;

  // REQUIRES: the run is over.
  BenchReport take_report();

 private:
  class Worker;

  // Ends the run because of an error, the first one.
  void fail(Status why);
  void on_worker_ended();

  BenchPlan plan_;
  std::vector<std::string> bodies_;  // the messages with their prefixes
  const int stop_event_;             // readable once the run is to end
  std::atomic<bool> stopping_{false};
  std::atomic<std::uint64_t> issued_{0};  // measured calls of a closed loop
  std::int64_t start_ns_ = 0;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<std::thread> threads_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable ended_;
  int running_ = 0;
  Status status_;
};

}  // namespace headrace
