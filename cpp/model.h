// SPDX-License-Identifier: Apache-2.0
//
// Model: one loaded version of a model: its lanes, and the executors that serve all of them.
//
// Thread safety: add_lane() before the first request; all else from any thread.
// Ownership: native executors keep their model alive, so that one whose run never returns can be left behind.
//   close() before letting go of the last reference.
// Progress: executors sleep in one Parking while no lane has anything eligible; a push to any lane wakes one.

#pragma once

#include <cstdint>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/clock.h"
#include "core/timer.h"
#include "lane.h"

namespace headrace {

class Model : public std::enable_shared_from_this<Model> {
 public:
  // `clock` outlives the model.
  Model(std::string name, std::int64_t version, std::shared_ptr<Timer> timer, const Clock& clock);
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  // See Lane's constructor.
  Lane& add_lane(Signature signature, const LaneOptions& options, std::shared_ptr<Runner> runner,
                 std::shared_ptr<SlabPinner> pinner);

  // The lane of that signature, or nullptr.
  Lane* lane(std::string_view signature_name) const;

  // Starts native executors.  REQUIRES: has_runners().
  void start(int num_batch_threads);
  // Whether every lane has a runner.
  bool has_runners() const;

  // As lane.submit(), for a caller that is going to wait for the reply: where native executors serve the lane, one of
  // them is idle and runs of that size are short, the calling thread runs the batch in its place.
  [[nodiscard]] Status submit_or_run(Lane& lane, const RequestPtr& request);

  // For an executor: waits for the lane whose oldest eligible request is the oldest of all; nullptr once the model is
  // closed and nothing waits.
  Lane* next_lane();

  // Refuses new requests, runs what waits for up to `drain_ns`, answers the rest with UNAVAILABLE, and stops the
  // executors.  False if a run had not returned by then.  May be called again.
  bool close(std::int64_t drain_ns);

  const std::string& name() const { return group_.model_name; }
  const LaneGroup& group() const { return group_; }
  std::int64_t version() const { return version_; }

 private:
  struct Executor {
    std::thread thread;
    std::future<void> done;
  };

  Lane* oldest_eligible_lane();
  bool was_empty() const;

  const std::int64_t version_;
  const std::shared_ptr<Timer> timer_;
  LaneGroup group_;
  std::vector<std::unique_ptr<Lane>> lanes_;
  std::mutex executors_mutex_;
  std::vector<Executor> executors_;  // guarded by executors_mutex_
};

}  // namespace headrace
