// SPDX-License-Identifier: Apache-2.0

#include "net/buffer_pool.h"

#include <algorithm>
#include <bit>
#include <new>
#include <vector>

namespace headrace {
namespace {

// Messages of nearly one size share buffers: of each power of two there are eight sizes.
std::size_t rounded_up(std::size_t bytes) {
  const std::size_t step = std::bit_floor(bytes) / 8;
  return (bytes + step - 1) / step * step;
}

}  // namespace

BufferPool::~BufferPool() {
  for (const Buffer& buffer : kept_) ::operator delete(buffer.memory);
}

void* BufferPool::allocate(std::size_t bytes) {
  if (bytes < kBytesLeast) return ::operator new(bytes);
  bytes = rounded_up(bytes);
  {
    std::lock_guard lock(mutex_);
    // The newest first: its bytes may still be in a cache.
    const auto found =
        std::find_if(kept_.rbegin(), kept_.rend(), [bytes](const Buffer& b) { return b.bytes == bytes; });
    if (found != kept_.rend()) {
      void* const memory = found->memory;
      kept_.erase(std::next(found).base());
      kept_bytes_ -= bytes;
      return memory;
    }
  }
  return ::operator new(bytes);
}

void BufferPool::release(void* memory, std::size_t bytes) {
  if (bytes < kBytesLeast) return ::operator delete(memory);
  bytes = rounded_up(bytes);
  std::vector<Buffer> too_much;  // let go of without the mutex: that may be a system call
  {
    std::lock_guard lock(mutex_);
    kept_.push_back({memory, bytes});
    kept_bytes_ += bytes;
    while (kept_bytes_ > kept_bytes_max_ || kept_.size() > kBuffersMax) {
      too_much.push_back(kept_.front());
      kept_bytes_ -= kept_.front().bytes;
      kept_.pop_front();
    }
  }
  for (const Buffer& buffer : too_much) ::operator delete(buffer.memory);
}

std::size_t BufferPool::kept_bytes() const {
  std::lock_guard lock(mutex_);
  return kept_bytes_;
}

}  // namespace headrace
