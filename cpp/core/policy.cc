// SPDX-License-Identifier: Apache-2.0

#include "core/policy.h"

#include <algorithm>
#include <bit>
#include <iterator>

namespace headrace {
namespace {

constexpr double kNewSampleWeight = 0.25;
constexpr double kOutlierFactor = 4;
constexpr std::int64_t kForgetAfterNs = 1'000'000'000;
constexpr int kSpreadRuns = 512;

}  // namespace

std::int64_t eligible_at_ns(const PolicyOptions& options, std::int64_t rows, std::int64_t oldest_arrival_ns) {
  if (options.policy == Policy::kAdaptive || rows >= options.max_batch_size) return oldest_arrival_ns;
  return after_ns(oldest_arrival_ns, options.batch_timeout_ns);
}

void ServiceTime::record(std::int64_t rows, std::int64_t run_ns, std::int64_t now_ns) {
  const auto sample = static_cast<double>(run_ns);
  auto [entry, is_new] = measured_.try_emplace(rows);
  Measured& measured = entry->second;
  double& mean_ns = measured.mean_ns;
  if (!is_new && now_ns - measured.renewed_ns <= kForgetAfterNs) {
    mean_ns = std::min(mean_ns, kOutlierFactor * sample);
    mean_ns += kNewSampleWeight * (std::min(sample, kOutlierFactor * mean_ns) - mean_ns);
  } else {
    mean_ns = sample;
  }
  measured.renewed_ns = now_ns;
  measured.spread.record(run_ns);
}

std::int64_t ServiceTime::predict_ns(std::int64_t rows, std::int64_t now_ns) const {
  const auto fresh = [now_ns](const auto& entry) { return now_ns - entry.second.renewed_ns <= kForgetAfterNs; };
  const auto at_or_above = std::find_if(measured_.lower_bound(rows), measured_.end(), fresh);
  if (at_or_above != measured_.end() && at_or_above->first == rows)
    return static_cast<std::int64_t>(at_or_above->second.mean_ns);
  const auto below = std::find_if(std::make_reverse_iterator(measured_.lower_bound(rows)), measured_.rend(), fresh);
  if (at_or_above == measured_.end() && below == measured_.rend()) return 0;
  if (at_or_above == measured_.end()) return static_cast<std::int64_t>(below->second.mean_ns);
  if (below == measured_.rend()) return static_cast<std::int64_t>(at_or_above->second.mean_ns);
  const double share =
      static_cast<double>(rows - below->first) / static_cast<double>(at_or_above->first - below->first);
  return static_cast<std::int64_t>(below->second.mean_ns +
                                   share * (at_or_above->second.mean_ns - below->second.mean_ns));
}

std::int64_t ServiceTime::p99_ns(std::int64_t rows) const {
  const auto found = measured_.find(rows);
  return found == measured_.end() ? kNever : found->second.spread.p99_ns();
}

// Quarters of octaves by the two bits below the highest: 4-4.99, 5-5.99, 6-6.99, 7-7.99, 8-9.99 and so on.
std::size_t ServiceTime::Spread::bin_of(std::int64_t run_ns) {
  const auto value = static_cast<std::uint64_t>(std::max<std::int64_t>(run_ns, kPerOctave));
  const int octave = std::bit_width(value) - 3;
  return std::min<std::size_t>(static_cast<std::size_t>(octave * kPerOctave) + ((value >> octave) & 3),
                               kPerOctave * kOctaves - 1);
}

void ServiceTime::Spread::record(std::int64_t run_ns) {
  const std::size_t bin = bin_of(run_ns);
  ++counts_[bin];
  highest_ = std::max(highest_, bin);
  if (++total_ < kSpreadRuns) return;
  total_ = 0;
  for (std::size_t i = 0; i <= highest_; ++i) total_ += counts_[i] /= 2;
  while (highest_ > 0 && counts_[highest_] == 0) --highest_;
}

std::int64_t ServiceTime::Spread::p99_ns() const {
  int above = counts_[highest_];
  std::size_t bin = highest_;
  while (bin > 0 && above * 100 <= total_) above += counts_[--bin];
  return static_cast<std::int64_t>(bin % kPerOctave + kPerOctave + 1) << (bin / kPerOctave);
}

bool BatchChooser::late(std::int64_t deadline_ns, std::int64_t rows) const {
  return deadline_ns != kNever && after_ns(now_ns_, service_.predict_ns(rows, now_ns_)) > deadline_ns;
}

BatchChooser::Verdict BatchChooser::consider(std::int64_t rows, std::int64_t deadline_ns) {
  const std::int64_t window_rows = std::min(rows_max_, backlog_rows_);
  const std::int64_t behind_rows = backlog_rows_ - rows;
  if (deadline_ns <= now_ns_) {
    backlog_rows_ = behind_rows;
    return Verdict::kExpire;
  }
  const bool others_wait = rows_ > 0 || behind_rows > 0;
  const bool overload = rows_ == 0 && behind_rows >= rows_max_;
  if ((others_wait && late(deadline_ns, rows)) || (overload && late(deadline_ns, window_rows))) {
    backlog_rows_ = behind_rows;
    return Verdict::kExpire;
  }
  if (rows_ > 0) {
    if (rows_ + rows > rows_max_) {
      full_ = true;
      return Verdict::kStop;
    }
    if (late(std::min(earliest_deadline_ns_, deadline_ns), rows_ + rows)) return Verdict::kStop;
  }
  backlog_rows_ = behind_rows;
  rows_ += rows;
  earliest_deadline_ns_ = std::min(earliest_deadline_ns_, deadline_ns);
  full_ = rows_ >= rows_max_;
  return Verdict::kTake;
}

}  // namespace headrace
