// SPDX-License-Identifier: Apache-2.0

#include "core/slab.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <mutex>
#include <utility>
#include <vector>

namespace headrace {
namespace {

constexpr std::size_t kSmallestSlabBytes = 4096;  // a page: what a device can register

// Room for batches that are a little larger, without much waste: an eighth at most.
std::size_t capacity_for(std::size_t bytes) {
  const std::size_t step = std::max(std::bit_floor(bytes) / 8, kSmallestSlabBytes);
  return (std::max<std::size_t>(bytes, 1) + step - 1) / step * step;
}

}  // namespace

Slab::Slab(std::size_t capacity, std::shared_ptr<SlabPinner> pinner)
    : data_(static_cast<std::byte*>(std::aligned_alloc(kSmallestSlabBytes, capacity))),
      capacity_(data_ == nullptr ? 0 : capacity),
      pinner_(std::move(pinner)) {
  static_assert(kSmallestSlabBytes % kSlabAlignment == 0);
  if (pinner_ != nullptr && data_ != nullptr) pinned_ = pinner_->pin(data_, capacity_);
}

Slab::~Slab() {
  if (pinned_) pinner_->unpin(data_);
  std::free(data_);
}

// The idle slabs; kept alive by the slabs that are out, so that the last of them finds its way.
struct SlabPool::Shelf {
  explicit Shelf(std::shared_ptr<SlabPinner> slab_pinner) : pinner(std::move(slab_pinner)) {}

  // Counts one slab out: an idle one of at least `bytes`, or null for a new one, which then takes the place of an idle
  // one (all of them are smaller) if there are as many slabs as were ever out.
  std::unique_ptr<Slab> take(std::size_t bytes) {
    std::unique_ptr<Slab> replaced;  // freed after the lock
    std::lock_guard lock(mutex);
    out_max = std::max(out_max, ++out);
    idle.reserve(out_max);  // so that put_back() never allocates
    for (auto candidate = idle.begin(); candidate != idle.end(); ++candidate) {
      if ((*candidate)->capacity() < bytes) continue;
      std::unique_ptr<Slab> slab = std::move(*candidate);
      idle.erase(candidate);
      return slab;
    }
    if (out + idle.size() > out_max) {
      replaced = std::move(idle.back());
      idle.pop_back();
    }
    return nullptr;
  }

  void count_new(const Slab& slab) {
    std::lock_guard lock(mutex);
    ++allocated;
    pinned += slab.pinned() ? 1 : 0;
  }

  void count_none() {
    std::lock_guard lock(mutex);
    --out;
  }

  void put_back(std::unique_ptr<Slab> slab) {
    std::lock_guard lock(mutex);
    --out;
    idle.push_back(std::move(slab));
  }

  const std::shared_ptr<SlabPinner> pinner;
  std::mutex mutex;
  std::vector<std::unique_ptr<Slab>> idle;
  std::size_t out = 0;
  std::size_t out_max = 0;
  std::int64_t allocated = 0;
  std::int64_t pinned = 0;
};

SlabPool::SlabPool(std::shared_ptr<SlabPinner> pinner) : shelf_(std::make_shared<Shelf>(std::move(pinner))) {}

SlabPtr SlabPool::acquire(std::size_t bytes) {
  std::unique_ptr<Slab> slab = shelf_->take(bytes);
  if (slab == nullptr) {
    slab = std::make_unique<Slab>(capacity_for(bytes), shelf_->pinner);
    if (slab->data() == nullptr) {
      shelf_->count_none();
      return nullptr;
    }
    shelf_->count_new(*slab);
  }
  return SlabPtr(slab.release(),
                 [shelf = shelf_](Slab* returned) { shelf->put_back(std::unique_ptr<Slab>(returned)); });
}

std::int64_t SlabPool::allocated() const {
  std::lock_guard lock(shelf_->mutex);
  return shelf_->allocated;
}

std::int64_t SlabPool::pinned() const {
  std::lock_guard lock(shelf_->mutex);
  return shelf_->pinned;
}

}  // namespace headrace
