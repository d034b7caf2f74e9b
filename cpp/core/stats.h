// SPDX-License-Identifier: Apache-2.0
//
// Stats: what a lane counted since its start.  This file counts; whoever exports names and units.
//
// Thread safety: every member from any thread.  A reader sees each counter at some recent moment, not all of them at
//   the same one (relaxed loads and adds: counters order nothing).

#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/batch.h"

namespace headrace {

class Counter {
 public:
  Counter& operator++() {
    add(1);
    return *this;
  }
  void add(std::int64_t amount) { value_.fetch_add(amount, std::memory_order_relaxed); }
  std::int64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::int64_t> value_{0};
};

struct Stats {
  explicit Stats(std::int64_t max_batch_size) : batches_by_rows(static_cast<std::size_t>(max_batch_size) + 2) {}

  // Requests, by how submit() ended: accepted, or refused because of a limit, or refused for any other reason.
  Counter requests;
  Counter rejected;
  Counter invalid;
  // Accepted requests, by how they were answered; the sum reaches `requests` when nothing is pending.
  Counter ok;
  Counter failed;     // the run failed
  Counter expired;    // DEADLINE_EXCEEDED
  Counter cancelled;  // by the client
  Counter closed;     // UNAVAILABLE at shutdown
  // Batches that ran, or found no memory to.
  Counter batches;
  Counter batch_requests;
  Counter batch_rows;
  Counter wait_ns;  // from arrival to the start of the run, summed over the requests of the batches
  Counter run_ns;   // summed over the batches
  std::array<Counter, kBatchReasons> batches_by_reason;
  std::vector<Counter> batches_by_rows;  // [n]: batches of n rows; the last: larger ones
  // Slabs that something still held when the batch had been answered: out of the pool until that lets go.
  Counter slabs_held;

  void count_run(const Batch& batch) {
    batches.add(1);
    batch_requests.add(static_cast<std::int64_t>(batch.slots().size()));
    batch_rows.add(batch.rows());
    for (const Slot& slot : batch.slots()) wait_ns.add(batch.started_ns() - slot.request->arrival_ns);
    run_ns.add(batch.done_ns() - batch.started_ns());
    batches_by_reason[static_cast<std::size_t>(batch.reason())].add(1);
    const auto rows = static_cast<std::size_t>(batch.rows());
    batches_by_rows[rows < batches_by_rows.size() ? rows : batches_by_rows.size() - 1].add(1);
  }
};

}  // namespace headrace
