// SPDX-License-Identifier: Apache-2.0
//
// FakeRunner: gives back the inputs as outputs; fails, waits or keeps the slab where a test says so.
//
// Thread safety: every function from any thread.

#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "core/batch.h"
#include "core/status.h"
#include "fake_request.h"
#include "run/runner.h"

namespace headrace {

class FakeRunner final : public Runner {
 public:
  Status run(const Batch& batch, Outputs* outputs) override {
    std::unique_lock lock(mutex_);
    rows_of_runs_.push_back(batch.rows());
    threads_of_runs_.push_back(std::this_thread::get_id());
    changed_.notify_all();
    changed_.wait(lock, [&] { return !held_; });
    if (keep_slab_) kept_.push_back(batch.slab());
    if (!status_.ok()) return status_;
    outputs->tensors.assign(batch.inputs().begin(), batch.inputs().end());
    outputs->owner = batch.memory();
    return {};
  }

  // Runs that begin from now on fail so; OK ends it.
  void fail_with(Status status) {
    std::lock_guard lock(mutex_);
    status_ = std::move(status);
  }

  // Runs that begin from now on return only after release().
  void hold() {
    std::lock_guard lock(mutex_);
    held_ = true;
  }
  void release() {
    std::lock_guard lock(mutex_);
    held_ = false;
    changed_.notify_all();
  }

  // Whether that many runs began.
  [[nodiscard]] bool wait_for_runs(std::size_t runs) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kEventLimit, [&] { return rows_of_runs_.size() >= runs; });
  }

  // Runs that begin from now on adopt the slab, as a variable may that was assigned the input.
  void keep_slabs() {
    std::lock_guard lock(mutex_);
    keep_slab_ = true;
  }

  // One entry for each run that began.
  std::vector<std::int64_t> rows_of_runs() const {
    std::lock_guard lock(mutex_);
    return rows_of_runs_;
  }

  // Which thread each run was on.
  std::vector<std::thread::id> threads_of_runs() const {
    std::lock_guard lock(mutex_);
    return threads_of_runs_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::int64_t> rows_of_runs_;
  std::vector<std::thread::id> threads_of_runs_;
  std::vector<SlabPtr> kept_;
  Status status_;
  bool held_ = false;
  bool keep_slab_ = false;
};

}  // namespace headrace
