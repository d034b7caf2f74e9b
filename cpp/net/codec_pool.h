// SPDX-License-Identifier: Apache-2.0
//
// CodecPool: threads that inflate and deflate large messages, so that no loop is held up by them.
//
// Thread safety: every function from any thread.
// Ownership: what is to be run belongs to the pool until it has run, or is dropped by close().
// Progress: a mutex is held for a moment.  How much waits is limited by the calls that there may be.

#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace headrace {

class CodecPool {
 public:
  // Up to so many bytes are coded where they are: that is sooner done than handed over.
  static constexpr std::size_t kInlineBytesMax = 16 << 10;

  explicit CodecPool(int threads_max) : threads_max_(threads_max) {}
  CodecPool(const CodecPool&) = delete;
  CodecPool& operator=(const CodecPool&) = delete;
  ~CodecPool() { close(); }

  // Runs it on a thread of the pool, the first of which starts now.  After close() it is dropped.
  void run(std::function<void()> work);

  // Whether what runs is to end soon, for nobody wants it any more.
  bool is_closed() const { return closed_.load(std::memory_order_relaxed); }  // a hint; the mutex orders what counts

  // Drops what waits, and returns when nothing runs.
  void close();

 private:
  void serve();

  const int threads_max_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> waiting_;  // guarded by mutex_, as are those below
  std::vector<std::thread> threads_;
  std::size_t idle_ = 0;  // threads without work
  std::atomic<bool> closed_{false};
};

}  // namespace headrace
