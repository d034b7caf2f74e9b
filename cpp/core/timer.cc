// SPDX-License-Identifier: Apache-2.0

#include "core/timer.h"

#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cassert>
#include <cstddef>

namespace headrace {

void Timer::start() {
  if (thread_.joinable()) return;
  stopping_.store(false);
  thread_ = std::thread([this] { run(); });
}

void Timer::stop() {
  std::lock_guard lock(stop_mutex_);
  if (!thread_.joinable()) return;
  stopping_.store(true);
  wakes_.fetch_add(1);
  LinuxFutex::wake_one(wakes_);
  thread_.join();
}

void Timer::add(TimerClient* client) {
  {
    std::lock_guard lock(clients_mutex_);
    clients_.push_back(client);
  }
  wake_if_asleep_after(client->due_ns_.load());
}

void Timer::remove(TimerClient* client) {
  assert(std::this_thread::get_id() != thread_.get_id());
  std::unique_lock lock(clients_mutex_);
  clients_.erase(std::remove(clients_.begin(), clients_.end(), client), clients_.end());
  client_left_.wait(lock, [&] { return called_ != client; });
}

void Timer::call_by(TimerClient& client, std::int64_t due_ns) {
  // Also where somebody else has asked for an earlier time: that thread may be stopped before its own wake.
  wake_if_asleep_after(lower(client.due_ns_, due_ns));  // (A)
}

std::int64_t Timer::fire_due(std::int64_t now_ns) {
  std::unique_lock lock(clients_mutex_);
  // A client removed meanwhile moves its successors up, and one of them may miss its turn: the value returned is then
  // in the past, as for a producer who came late, and the caller is back at once.
  for (std::size_t i = 0; i < clients_.size(); ++i) {
    TimerClient* const client = clients_[i];
    if (client->due_ns_.load() > now_ns) continue;
    called_ = client;
    lock.unlock();
    client->due_ns_.exchange(kNever);  // before the call, for whoever lowers it meanwhile; reads (A)
    lower(client->due_ns_, client->on_timer(now_ns));
    lock.lock();
    called_ = nullptr;
    client_left_.notify_all();
  }
  lock.unlock();
  return earliest_due_ns();
}

void Timer::run() {
  pthread_setname_np(pthread_self(), "headrace-timer");
  prctl(PR_SET_TIMERSLACK, 1);  // the default adds 50 us to every sleep
  sigset_t signals;             // the process's signals are the main thread's
  sigfillset(&signals);
  pthread_sigmask(SIG_SETMASK, &signals, nullptr);

  for (;;) {
    const std::uint32_t wakes = wakes_.load();
    if (stopping_.load()) return;
    const std::int64_t due_ns = fire_due(clock_.now_ns());
    // Either (B) sees (C), or this second look sees (A).
    wake_at_ns_.store(due_ns);  // (C)
    if (earliest_due_ns() >= due_ns) LinuxFutex::wait_until(wakes_, wakes, due_ns);
    wake_at_ns_.store(kAwake);
  }
}

// The caller has published `due_ns`: the thread has either not looked yet, or is found asleep here.
void Timer::wake_if_asleep_after(std::int64_t due_ns) {
  if (due_ns >= wake_at_ns_.load()) return;  // (B)
  wakes_.fetch_add(1);
  LinuxFutex::wake_one(wakes_);
}

std::int64_t Timer::earliest_due_ns() {
  std::int64_t earliest_ns = kNever;
  std::lock_guard lock(clients_mutex_);
  for (const TimerClient* client : clients_) earliest_ns = std::min(earliest_ns, client->due_ns_.load());
  return earliest_ns;
}

// Returns the lower of the two, which `due_ns` then holds, unless the timer takes it at that moment.
std::int64_t Timer::lower(std::atomic<std::int64_t>& due_ns, std::int64_t to_ns) {
  std::int64_t current_ns = due_ns.load();
  while (to_ns < current_ns) {
    if (due_ns.compare_exchange_weak(current_ns, to_ns)) return to_ns;
  }
  return current_ns;
}

}  // namespace headrace
