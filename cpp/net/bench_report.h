// SPDX-License-Identifier: Apache-2.0
//
// BenchReport: what a run of the load generator, or one thread of it, has measured.
//
// Thread safety: none; each thread has its own, merged at the end.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/status.h"
#include "net/latency_histogram.h"
#include "net/timeline.h"

namespace headrace {

struct BenchReport {
  static constexpr std::size_t kCodes = static_cast<std::size_t>(Code::kUnauthenticated) + 1;

  // A message that answered one of the plan's, and how often.
  using Answers = std::vector<std::pair<std::string, std::uint64_t>>;

  std::array<std::uint64_t, kCodes> by_code{};
  std::array<std::string, kCodes> texts;  // the first of each code
  LatencyHistogram latency;               // of those with OK, from the time they were meant to be sent
  LatencyHistogram lateness;              // how long after that they were handed to their connection, in an open loop
  Timeline timeline;
  std::uint64_t warm_up = 0;          // answers to calls that are not measured
  std::uint64_t unsent = 0;           // arrivals that the run did not get to
  std::uint64_t unanswered = 0;       // calls that were under way when patience, or the run, ended
  std::int64_t last_answer_ns = 0;    // after the warm-up
  std::vector<Answers> answers;       // for each message, if the target keeps them
  std::uint64_t answers_dropped = 0;  // for want of room
  Status status;                      // why the run ended early, if it did

  void merge(const BenchReport& other);
  // False where there is no room for one more.
  bool add_answer(std::size_t message, std::string answer, std::uint64_t times);

 private:
  std::size_t answer_bytes_ = 0;
};

}  // namespace headrace
