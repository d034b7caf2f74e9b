// SPDX-License-Identifier: Apache-2.0

#include "bind/fork.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>

namespace headrace {

int fork_generation() {
  static std::atomic<int> generation{0};
  static const int registered = pthread_atfork(nullptr, nullptr, [] { generation.fetch_add(1); });
  (void)registered;
  return generation.load(std::memory_order_relaxed);  // written only while a process has one thread
}

bool is_main_thread() {
  // A forked child begins with the thread that forked, whatever that was.
  thread_local int looked_at = -1;
  thread_local bool is_main = false;
  if (const int generation = fork_generation(); looked_at != generation) {
    looked_at = generation;
    is_main = gettid() == getpid();
  }
  return is_main;
}

}  // namespace headrace
