// SPDX-License-Identifier: Apache-2.0

#include "bind/fork.h"

#include <pthread.h>

#include <atomic>

namespace headrace {

int fork_generation() {
  static std::atomic<int> generation{0};
  static const int registered = pthread_atfork(nullptr, nullptr, [] { generation.fetch_add(1); });
  (void)registered;
  return generation.load(std::memory_order_relaxed);  // written only while a process has one thread
}

}  // namespace headrace
