// SPDX-License-Identifier: Apache-2.0
//
// The obvious queue: a std::vector under a std::mutex, taken whole by a swap.  Its capacity is kept.

#pragma once

#include <cstddef>
#include <mutex>
#include <vector>

namespace headrace::rivals {

template <typename T>
class MutexQueue {
 public:
  void push(T* item) {
    const std::lock_guard lock(mutex_);
    items_.push_back(item);
  }

  // Takes what it finds; returns how many.
  std::size_t take() {
    taken_.clear();
    const std::lock_guard lock(mutex_);
    taken_.swap(items_);
    return taken_.size();
  }

 private:
  std::mutex mutex_;
  std::vector<T*> items_;
  std::vector<T*> taken_;
};

}  // namespace headrace::rivals
