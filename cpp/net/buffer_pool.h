// SPDX-License-Identifier: Apache-2.0
//
// BufferPool: the memory of large messages, kept for the next ones: fresh pages cost more than the copy into them.
//
// Thread safety: every function from any thread.
// Ownership: what was allocated belongs to the caller until it is released; what is kept, to the pool.
// Progress: a mutex is held for a moment.
// Invariant: what is kept is at most kept_bytes_max bytes, in at most kBuffersMax buffers; what was kept longest goes.

#pragma once

#include <cstddef>
#include <deque>
#include <mutex>

namespace headrace {

class BufferPool {
 public:
  // Smaller ones are left to the allocator, which is good at them.
  static constexpr std::size_t kBytesLeast = 16 << 10;
  static constexpr std::size_t kBuffersMax = 64;

  explicit BufferPool(std::size_t kept_bytes_max) : kept_bytes_max_(kept_bytes_max) {}
  BufferPool(const BufferPool&) = delete;
  BufferPool& operator=(const BufferPool&) = delete;
  ~BufferPool();

  // As operator new; throws std::bad_alloc.
  void* allocate(std::size_t bytes);
  // What allocate() returned for so many bytes.
  void release(void* memory, std::size_t bytes);

  std::size_t kept_bytes() const;

 private:
  struct Buffer {
    void* memory;
    std::size_t bytes;
  };

  const std::size_t kept_bytes_max_;
  mutable std::mutex mutex_;
  std::deque<Buffer> kept_;  // the newest last; guarded by mutex_
  std::size_t kept_bytes_ = 0;
};

}  // namespace headrace
