// SPDX-License-Identifier: Apache-2.0

#include "net/bench_report.h"

#include <algorithm>

namespace headrace {

namespace {

// Different answers to one message, and the bytes of all.
constexpr std::size_t kAnswersMax = 64;
constexpr std::size_t kAnswerBytesMax = 256 << 20;

}  // namespace

void BenchReport::merge(const BenchReport& other) {
  for (std::size_t code = 0; code < kCodes; ++code) {
    by_code[code] += other.by_code[code];
    if (texts[code].empty()) texts[code] = other.texts[code];
  }
  latency.merge(other.latency);
  lateness.merge(other.lateness);
  timeline.merge(other.timeline);
  warm_up += other.warm_up;
  unsent += other.unsent;
  unanswered += other.unanswered;
  last_answer_ns = std::max(last_answer_ns, other.last_answer_ns);
  answers_dropped += other.answers_dropped;
  for (std::size_t message = 0; message < other.answers.size(); ++message) {
    for (const auto& [answer, times] : other.answers[message]) {
      if (!add_answer(message, answer, times)) answers_dropped += times;
    }
  }
}

bool BenchReport::add_answer(std::size_t message, std::string answer, std::uint64_t times) {
  if (message >= answers.size()) answers.resize(message + 1);
  for (auto& [known, count] : answers[message]) {
    if (known == answer) {
      count += times;
      return true;
    }
  }
  if (answers[message].size() == kAnswersMax || answer.size() > kAnswerBytesMax - answer_bytes_) return false;
  answer_bytes_ += answer.size();
  answers[message].emplace_back(std::move(answer), times);
  return true;
}

}  // namespace headrace
