// SPDX-License-Identifier: Apache-2.0
//
// The policy: when a batch may be formed and which waiting requests go into it.  Pure: state and time in, decision
// out, so that the server and a simulator run the same code.
//
// Thread safety: none; the caller holds the lane's scheduler mutex.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>

#include "core/clock.h"

namespace headrace {

enum class Policy {
  kAdaptive,  // a free executor takes what is waiting, at once
  kTimeout,   // TensorFlow Serving's rule: a part-full batch waits until its oldest row is batch_timeout old
};

struct PolicyOptions {
  Policy policy = Policy::kAdaptive;
  std::int64_t max_batch_size = 64;
  std::int64_t batch_timeout_ns = 0;
};

// When waiting rows become eligible: a batch of them may be formed from then on.
std::int64_t eligible_at_ns(const PolicyOptions& options, std::int64_t rows, std::int64_t oldest_arrival_ns);

// How long a run of n rows takes: an exponentially weighted mean per batch size, linear between sizes, and how many of
// the runs of that size took how long.
//
// For the mean, a sample counts for at most four times the mean so far and the mean for at most four times a sample,
// and a mean that was not renewed for a second is forgotten: one outlier makes nobody wait or be refused for longer
// than that.
class ServiceTime {
 public:
  void record(std::int64_t rows, std::int64_t run_ns, std::int64_t now_ns);

  // 0 where nothing was measured lately.
  std::int64_t predict_ns(std::int64_t rows, std::int64_t now_ns) const;

  // What 99 of 100 of the last runs of that size did not exceed, rounded up by at most a quarter; kNever where there
  // was none.  Old runs weigh less: half of all is forgotten each time that 512 have been counted.
  std::int64_t p99_ns(std::int64_t rows) const;

 private:
  // Runs counted by the logarithm of their time.
  class Spread {
   public:
    void record(std::int64_t run_ns);
    std::int64_t p99_ns() const;

   private:
    static constexpr int kPerOctave = 4;
    static constexpr int kOctaves = 40;  // to 18 minutes
    static std::size_t bin_of(std::int64_t run_ns);

    std::array<std::uint16_t, kPerOctave * kOctaves> counts_{};
    std::size_t highest_ = 0;  // no bin above it has a count
    int total_ = 0;
  };
  struct Measured {
    double mean_ns = 0;
    std::int64_t renewed_ns = 0;
    Spread spread;
  };
  std::map<std::int64_t, Measured> measured_;  // by rows; at most one entry per size up to max_batch_size
};

// Decides, request by request in arrival order, what a forming batch does with each.
//
// A request whose deadline has passed is expired.  Otherwise (window drop, Nexus' early drop) a request that can no
// longer be answered in time is expired while others wait that the executor can serve instead; and under overload,
// with a full batch waiting behind it, so is a head that would force a small batch.  The last request waiting is
// never expired before its deadline: a wrong prediction must not keep an idle executor from measuring again.
class BatchChooser {
 public:
  enum class Verdict { kTake, kExpire, kStop };

  // `rows_max` bounds this batch, `backlog_rows` are all rows waiting in the bucket.  `service` outlives the chooser.
  BatchChooser(const ServiceTime& service, std::int64_t rows_max, std::int64_t backlog_rows, std::int64_t now_ns)
      : service_(service), rows_max_(rows_max), backlog_rows_(backlog_rows), now_ns_(now_ns) {}

  Verdict consider(std::int64_t rows, std::int64_t deadline_ns);

  std::int64_t rows() const { return rows_; }
  // Whether no further request fits.
  bool full() const { return full_; }

 private:
  bool late(std::int64_t deadline_ns, std::int64_t rows) const;

  const ServiceTime& service_;
  std::int64_t rows_max_;
  std::int64_t backlog_rows_;  // not considered yet
  std::int64_t now_ns_;
  std::int64_t rows_ = 0;
  std::int64_t earliest_deadline_ns_ = kNever;
  bool full_ = false;
};

}  // namespace headrace
