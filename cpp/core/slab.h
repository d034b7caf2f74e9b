// SPDX-License-Identifier: Apache-2.0
//
// SlabPool: 64-byte-aligned buffers under the batches of a lane, reused once nothing refers to them.
//
// Thread safety: acquire() and the release of a SlabPtr from any thread (TensorFlow drops its tensors on threads of
//   its own, without warning and without the GIL).
// Ownership: a slab is out of the pool while any SlabPtr to it lives.  It may outlive the pool.
// Progress: acquire() and release hold a mutex for a few instructions, once per batch.
// Invariant: there are never more slabs than were out at once at some moment; a slab never returns while a reference is
//   left, whatever the addresses of a run's outputs say (a variable can adopt the buffer that was fed to it).

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace headrace {

// TensorFlow shares a fed buffer that is aligned so, and copies any other.
inline constexpr std::size_t kSlabAlignment = 64;

// Registers slab memory with a device, for direct transfers.
class SlabPinner {
 public:
  virtual ~SlabPinner() = default;
  virtual bool pin(void* data, std::size_t bytes) = 0;  // whether it is pinned now
  virtual void unpin(void* data) = 0;                   // called once for each pin() that said true
};

class Slab {
 public:
  Slab(std::size_t capacity, std::shared_ptr<SlabPinner> pinner);
  ~Slab();
  Slab(const Slab&) = delete;
  Slab& operator=(const Slab&) = delete;

  std::byte* data() const { return data_; }
  std::size_t capacity() const { return capacity_; }
  bool pinned() const { return pinned_; }

 private:
  std::byte* data_;
  std::size_t capacity_;
  std::shared_ptr<SlabPinner> pinner_;
  bool pinned_ = false;
};

using SlabPtr = std::shared_ptr<Slab>;

class SlabPool {
 public:
  // `pinner` may be null.
  explicit SlabPool(std::shared_ptr<SlabPinner> pinner);

  // A slab of at least `bytes`; nullptr where memory is out.
  SlabPtr acquire(std::size_t bytes);

  // Slabs made so far, and those of them that are pinned.
  std::int64_t allocated() const;
  std::int64_t pinned() const;

 private:
  struct Shelf;
  std::shared_ptr<Shelf> shelf_;
};

}  // namespace headrace
