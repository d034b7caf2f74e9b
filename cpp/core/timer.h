// SPDX-License-Identifier: Apache-2.0
//
// Timer: the thread that serves batch windows and request deadlines for all lanes of an engine; it sleeps until the
// earliest of them and never polls.
//
// Thread safety: call_by() from any thread that knows the client to be alive, also from on_timer().  add() and
//   remove() from any thread but the timer's.  start() and stop() by the owner.  fire_due() by the timer's thread, or,
//   where it was not started, by one thread at a time.
// Ownership: clients belong to their callers, who remove() them before they die.
// Progress: call_by() is lock-free; it makes a system call only for a time before the one the thread sleeps until.
//   A client that is slow in on_timer() delays the others.
// Invariant: whenever the thread sleeps until T, no client's due time is before T, or somebody who lowered it is about
//   to wake the thread.

#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <limits>
#include <mutex>
#include <thread>
#include <vector>

#include "core/clock.h"
#include "core/futex.h"

namespace headrace {

class TimerClient {
 public:
  virtual ~TimerClient() = default;

  // Serves what is due at `now_ns`; returns when it next wants to be called, later than now_ns, or kNever.  Does not
  // throw.  May be called earlier than it asked, and once more than it asked.
  virtual std::int64_t on_timer(std::int64_t now_ns) = 0;

  // When the next call is due, as of some moment during the call.
  std::int64_t was_due_ns() const { return due_ns_.load(); }

 private:
  friend class Timer;
  std::atomic<std::int64_t> due_ns_{kNever};
};

class Timer {
 public:
  explicit Timer(const Clock& clock) : clock_(clock) {}
  ~Timer() { stop(); }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  // Starts the thread, "headrace-timer"; the clock must be the system's.  stop() joins it; either may be repeated.
  void start();
  void stop();

  void add(TimerClient* client);
  // When it returns, on_timer() of `client` is not running and never will be again.
  void remove(TimerClient* client);

  // Has `client` called at `due_ns` or earlier.
  void call_by(TimerClient& client, std::int64_t due_ns);

  // What the thread does each time it wakes: calls each client whose time has come; returns the earliest next one,
  // which has come already if a producer asked for it meanwhile.
  std::int64_t fire_due(std::int64_t now_ns);

 private:
  static constexpr std::int64_t kAwake = std::numeric_limits<std::int64_t>::min();

  void run();
  void wake_if_asleep_after(std::int64_t due_ns);
  std::int64_t earliest_due_ns();
  static std::int64_t lower(std::atomic<std::int64_t>& due_ns, std::int64_t to_ns);

  const Clock& clock_;
  std::thread thread_;
  std::mutex stop_mutex_;  // two may stop it
  std::atomic<bool> stopping_{false};

  std::mutex clients_mutex_;
  std::condition_variable client_left_;
  std::vector<TimerClient*> clients_;  // guarded by clients_mutex_
  TimerClient* called_ = nullptr;      // whose on_timer() is running; guarded by clients_mutex_

  alignas(64) std::atomic<std::int64_t> wake_at_ns_{kAwake};  // what the thread sleeps until, or kAwake
  std::atomic<std::uint32_t> wakes_{0};                       // the futex: counts wakes
};

}  // namespace headrace
