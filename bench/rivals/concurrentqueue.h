// SPDX-License-Identifier: Apache-2.0
//
// moodycamel::ConcurrentQueue (Debian's libconcurrentqueue-dev), taken from in bulk, which is what it is best at.

#pragma once

#include <concurrentqueue/concurrentqueue.h>

#include <array>
#include <cstddef>

namespace headrace::rivals {

template <typename T>
class ConcurrentQueue {
 public:
  void push(T* item) { queue_.enqueue(item); }

  // Takes what it finds; returns how many.
  std::size_t take() { return queue_.try_dequeue_bulk(taken_.begin(), taken_.size()); }

 private:
  moodycamel::ConcurrentQueue<T*> queue_;
  std::array<T*, 256> taken_;
};

}  // namespace headrace::rivals
