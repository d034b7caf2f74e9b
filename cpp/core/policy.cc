// SPDX-License-Identifier: Apache-2.0

#include "core/policy.h"

#include <algorithm>
#include <iterator>

namespace headrace {
namespace {

constexpr double kNewSampleWeight = 0.25;
constexpr double kOutlierFactor = 4;
constexpr std::int64_t kForgetAfterNs = 1'000'000'000;

}  // namespace

std::int64_t eligible_at_ns(const PolicyOptions& options, std::int64_t rows, std::int64_t oldest_arrival_ns) {
  if (options.policy == Policy::kAdaptive || rows >= options.max_batch_size) return oldest_arrival_ns;
  return after_ns(oldest_arrival_ns, options.batch_timeout_ns);
}

void ServiceTime::record(std::int64_t rows, std::int64_t run_ns, std::int64_t now_ns) {
  const auto sample = static_cast<double>(run_ns);
  auto [entry, is_new] = means_.try_emplace(rows, Mean{sample, now_ns});
  Mean& mean = entry->second;
  if (!is_new && now_ns - mean.renewed_ns <= kForgetAfterNs) {
    mean.run_ns = std::min(mean.run_ns, kOutlierFactor * sample);
    mean.run_ns += kNewSampleWeight * (std::min(sample, kOutlierFactor * mean.run_ns) - mean.run_ns);
  } else {
    mean.run_ns = sample;
  }
  mean.renewed_ns = now_ns;
}

std::int64_t ServiceTime::predict_ns(std::int64_t rows, std::int64_t now_ns) const {
  const auto fresh = [now_ns](const auto& entry) { return now_ns - entry.second.renewed_ns <= kForgetAfterNs; };
  const auto at_or_above = std::find_if(means_.lower_bound(rows), means_.end(), fresh);
  if (at_or_above != means_.end() && at_or_above->first == rows)
    return static_cast<std::int64_t>(at_or_above->second.run_ns);
  const auto below = std::find_if(std::make_reverse_iterator(means_.lower_bound(rows)), means_.rend(), fresh);
  if (at_or_above == means_.end() && below == means_.rend()) return 0;
  if (at_or_above == means_.end()) return static_cast<std::int64_t>(below->second.run_ns);
  if (below == means_.rend()) return static_cast<std::int64_t>(at_or_above->second.run_ns);
  const double share =
      static_cast<double>(rows - below->first) / static_cast<double>(at_or_above->first - below->first);
  return static_cast<std::int64_t>(below->second.run_ns + share * (at_or_above->second.run_ns - below->second.run_ns));
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
