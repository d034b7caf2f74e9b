// SPDX-License-Identifier: Apache-2.0

#include "bind/gil.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <thread>

#include "core/clock.h"
#include "core/futex.h"

namespace headrace {
namespace {

// How long forbid_gil() waits for threads that run Python: that may be anything.
constexpr std::int64_t kCallsWithinNs = 1'000'000'000;

std::atomic<bool> forbidden{false};
std::thread::id exempt;  // written before `forbidden` is

// Threads between their look at `forbidden` and having the GIL.  A thread adds itself and then looks; forbid_gil()
// forbids and then waits for 0: one of them sees the other (seq_cst).
std::atomic<int> returning{0};

// Threads inside a CallsPython.  They enter, and forbid_gil() forbids, with the GIL held: none enters unseen.
LinuxFutex::Word calling{0};

// A forked child has one thread, which holds the GIL: the others' places are empty.
[[maybe_unused]] const int forget_other_threads = pthread_atfork(nullptr, nullptr, [] {
  returning.store(0);
  calling.store(0);
});

bool is_forbidden() { return forbidden.load() && std::this_thread::get_id() != exempt; }

[[noreturn]] void sleep_for_ever() {
  for (;;) pause();
}

void leave_returning() {
  if (returning.fetch_sub(1) == 1) returning.notify_all();
}

}  // namespace

GilRelease::~GilRelease() {
  returning.fetch_add(1);
  if (is_forbidden()) {
    leave_returning();
    sleep_for_ever();
  }
  PyEval_RestoreThread(state_);
  leave_returning();
}

CallsPython::CallsPython() {
  if (is_forbidden()) {
    PyEval_SaveThread();
    sleep_for_ever();
  }
  calling.fetch_add(1);
}

CallsPython::~CallsPython() {
  if (calling.fetch_sub(1) == 1 && forbidden.load()) LinuxFutex::wake_all(calling);
}

void forbid_gil() {
  exempt = std::this_thread::get_id();
  forbidden.store(true);
  PyThreadState* state = PyEval_SaveThread();
  const std::int64_t until_ns = SystemClock().now_ns() + kCallsWithinNs;
  for (std::uint32_t count = calling.load(); count != 0 && SystemClock().now_ns() < until_ns; count = calling.load())
    LinuxFutex::wait_until(calling, count, until_ns);
  for (int count = returning.load(); count != 0; count = returning.load()) returning.wait(count);
  PyEval_RestoreThread(state);
}

}  // namespace headrace
