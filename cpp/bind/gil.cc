// SPDX-License-Identifier: Apache-2.0

#include "bind/gil.h"

#include <unistd.h>

#include <atomic>
#include <thread>

namespace headrace {
namespace {

std::atomic<bool> forbidden{false};
std::thread::id exempt;  // written before `forbidden` is

// Threads between their look at `forbidden` and having the GIL.  A thread adds itself and then looks; forbid_gil()
// forbids and then waits for 0: one of them sees the other (seq_cst).
std::atomic<int> returning{0};

void leave_returning() {
  if (returning.fetch_sub(1) == 1) returning.notify_all();
}

}  // namespace

GilRelease::~GilRelease() {
  returning.fetch_add(1);
  if (forbidden.load() && std::this_thread::get_id() != exempt) {
    leave_returning();
    for (;;) pause();
  }
  PyEval_RestoreThread(state_);
  leave_returning();
}

void forbid_gil() {
  exempt = std::this_thread::get_id();
  forbidden.store(true);
  PyThreadState* state = PyEval_SaveThread();
  for (int count = returning.load(); count != 0; count = returning.load()) returning.wait(count);
  PyEval_RestoreThread(state);
}

}  // namespace headrace
