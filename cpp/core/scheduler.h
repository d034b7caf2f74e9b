// SPDX-License-Identifier: Apache-2.0
//
// Scheduler: the waiting requests of a lane in their buckets, and the forming of batches from them.
//
// Thread safety: none; the lane's mutex guards it.
// Ownership: holds one reference to each waiting request, taken over from the mailbox.
// Invariants: requests of a bucket stand in arrival order and may share a batch (in one bucket, none may: those that
//   run alone); a bucket exists only while it has requests; a request that is answered (expired, cancelled) may stay
//   linked until the next sweep or forming.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "core/batch.h"
#include "core/policy.h"
#include "core/request.h"

namespace headrace {

class Scheduler {
 public:
  // What form() took out of the queue.  `expired` are still to be answered.
  struct Formed {
    std::unique_ptr<Batch> batch;  // null where nothing is eligible
    std::vector<RequestPtr> expired;
  };

  // Whose turn it is, and when to look again.
  struct Head {
    std::int64_t arrival_ns = kNever;           // the oldest head among the eligible buckets
    std::int64_t next_eligible_at_ns = kNever;  // the earliest time at which another bucket becomes eligible
  };

  Scheduler(const PolicyOptions& options, std::size_t slab_bytes_max)
      : options_(options), slab_bytes_max_(slab_bytes_max) {}
  ~Scheduler();
  Scheduler(const Scheduler&) = delete;
  Scheduler& operator=(const Scheduler&) = delete;

  // Takes over the requests linked from `oldest_first` (nullptr: none), one reference to each.
  void absorb(Request* oldest_first);

  // From `closing` on, everything that waits is eligible.
  Head head(std::int64_t now_ns, bool closing) const;

  // Stage 4: the rows of the next batch, from the eligible bucket with the oldest head.  Claims their run.
  Formed form(std::int64_t now_ns, bool closing);

  // Takes out what was answered, and hands out what has reached its deadline.
  std::vector<RequestPtr> sweep(std::int64_t now_ns);

  // The earliest deadline of the requests that wait.
  std::int64_t earliest_deadline_ns() const { return earliest_deadline_ns_; }

  std::int64_t p99_ns(std::int64_t rows) const { return service_.p99_ns(rows); }

  void record_run(std::int64_t rows, std::int64_t run_ns, std::int64_t now_ns) {
    service_.record(std::min(rows, options_.max_batch_size), run_ns, now_ns);
  }

 private:
  // The type, number of trailing dimensions and those of every input; or what the requests that run alone have.
  using Key = std::vector<std::int64_t>;

  struct Bucket {
    Request* head = nullptr;
    Request* tail = nullptr;
    std::int64_t rows = 0;
    bool alone = false;  // each request is a batch of its own
  };
  using Buckets = std::map<Key, Bucket>;

  Buckets::iterator bucket_of(const Request& request);
  std::int64_t bucket_eligible_at_ns(const Bucket& bucket, bool closing) const;
  Buckets::iterator oldest_eligible(std::int64_t now_ns, bool closing);
  void fill(Bucket& bucket, std::int64_t now_ns, bool closing, Formed* formed);
  static RequestPtr pop(Bucket& bucket);

  const PolicyOptions options_;
  const std::size_t slab_bytes_max_;
  ServiceTime service_;
  Buckets buckets_;
  Buckets::iterator latest_ = buckets_.end();  // where the last request went: most requests are alike
  std::int64_t earliest_deadline_ns_ = kNever;
};

}  // namespace headrace
