// SPDX-License-Identifier: Apache-2.0

#include "model.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>
#include <utility>

namespace headrace {
namespace {

// How long executors may take to leave once nothing waits: as long as a run of theirs takes, within reason.
constexpr std::int64_t kLeaveWithinNs = 5'000'000'000;

}  // namespace

Model::Model(std::string name, std::int64_t version, std::shared_ptr<Timer> timer, const Clock& clock)
    : version_(version), timer_(std::move(timer)), group_(std::move(name), clock, *timer_) {}

Lane& Model::add_lane(Signature signature, const LaneOptions& options, std::shared_ptr<Runner> runner,
                      std::shared_ptr<SlabPinner> pinner) {
  return *lanes_.emplace_back(
      std::make_unique<Lane>(group_, std::move(signature), options, std::move(runner), std::move(pinner)));
}

Lane* Model::lane(std::string_view signature_name) const {
  for (const std::unique_ptr<Lane>& lane : lanes_)
    if (lane->signature().name == signature_name) return lane.get();
  return nullptr;
}

void Model::start(int num_batch_threads) {
  std::lock_guard lock(executors_mutex_);
  for (int i = 0; i < num_batch_threads; ++i) {
    std::packaged_task<void()> serve([self = shared_from_this()] {
      while (Lane* lane = self->next_lane()) lane->run_next();
    });
    std::future<void> done = serve.get_future();
    executors_.push_back({std::thread(std::move(serve)), std::move(done)});
    pthread_setname_np(executors_.back().thread.native_handle(), "headrace-exec");
  }
}

bool Model::has_runners() const {
  return std::all_of(lanes_.begin(), lanes_.end(), [](const auto& lane) { return lane->has_runner(); });
}

Lane* Model::oldest_eligible_lane() {
  Lane* oldest = nullptr;
  std::int64_t oldest_arrival_ns = kNever;
  for (const std::unique_ptr<Lane>& lane : lanes_) {
    const std::int64_t arrival_ns = lane->oldest_eligible_arrival_ns();
    if (arrival_ns >= oldest_arrival_ns) continue;
    oldest = lane.get();
    oldest_arrival_ns = arrival_ns;
  }
  return oldest;
}

// Whether no request waits or is on its way.
bool Model::was_empty() const {
  for (const std::unique_ptr<Lane>& lane : lanes_)
    if (lane->was_waiting_rows() != 0) return false;
  return true;
}

Status Model::submit_or_run(Lane& lane, const RequestPtr& request) {
  if (!lane.would_run_shortly(*request) || !group_.parking.try_borrow()) return lane.submit(request);
  const Status status = lane.submit_to_run(request);
  if (status.ok()) lane.run_next();
  group_.parking.give_back();
  if (!was_empty() && oldest_eligible_lane() != nullptr) group_.parking.wake_one();
  if (group_.closing.load()) group_.parking.wake_all();
  return status;
}

Lane* Model::next_lane() {
  for (;;) {
    if (Lane* lane = oldest_eligible_lane()) return lane;
    Parking<>::Ticket ticket = group_.parking.prepare();
    Lane* lane = oldest_eligible_lane();
    const bool leave = group_.closing.load() && was_empty();
    if ((lane == nullptr && !leave) || !group_.parking.try_cancel(ticket)) {
      group_.parking.park(ticket);
      continue;
    }
    return lane;
  }
}

bool Model::close(std::int64_t drain_ns) {
  group_.closing.store(true);
  group_.parking.wake_all();
  const std::int64_t drain_until_ns = after_ns(group_.clock.now_ns(), drain_ns);
  bool drained = true;
  for (const std::unique_ptr<Lane>& lane : lanes_)
    drained = lane->wait_drained(std::max<std::int64_t>(drain_until_ns - group_.clock.now_ns(), 0)) && drained;
  if (!drained)
    for (const std::unique_ptr<Lane>& lane : lanes_) lane->abandon();
  group_.parking.wake_all();

  std::lock_guard lock(executors_mutex_);
  const auto leave_until = std::chrono::steady_clock::now() + std::chrono::nanoseconds(kLeaveWithinNs);
  bool all_left = true;
  for (Executor& executor : executors_) {
    if (executor.done.wait_until(leave_until) == std::future_status::ready) {
      executor.thread.join();
    } else {
      executor.thread.detach();
      all_left = false;
    }
  }
  executors_.clear();
  if (!drained && all_left)  // the abandoned runs may have returned since
    for (const std::unique_ptr<Lane>& lane : lanes_) all_left = lane->wait_drained(0) && all_left;
  return all_left;
}

}  // namespace headrace
