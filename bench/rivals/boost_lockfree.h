// SPDX-License-Identifier: Apache-2.0
//
// boost::lockfree::queue (Debian's libboost-dev), with nodes for a thousand items from the start.

#pragma once

#include <boost/lockfree/queue.hpp>
#include <cstddef>

namespace headrace::rivals {

template <typename T>
class BoostLockfree {
 public:
  void push(T* item) { queue_.push(item); }

  // Takes what it finds; returns how many.
  std::size_t take() {
    return queue_.consume_all([](T*) {});
  }

 private:
  boost::lockfree::queue<T*> queue_{1024};
};

}  // namespace headrace::rivals
