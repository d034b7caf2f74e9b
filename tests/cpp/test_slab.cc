// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "core/slab.h"

// Memory that is out is a null pointer for a sanitizer too.
extern "C" __attribute__((visibility("default"))) const char* __asan_default_options() {
  return "allocator_may_return_null=1";
}
extern "C" __attribute__((visibility("default"))) const char* __tsan_default_options() {
  return "allocator_may_return_null=1";
}

namespace headrace {
namespace {

// Keeps the book of what is pinned; refuses everything where it is told to.
class FakePinner final : public SlabPinner {
 public:
  bool pin(void* data, std::size_t bytes) override {
    std::lock_guard lock(mutex_);
    if (refusing) return false;
    EXPECT_TRUE(pinned_.emplace(data, bytes).second);
    most = std::max(most, pinned_.size());
    return true;
  }
  void unpin(void* data) override {
    std::lock_guard lock(mutex_);
    EXPECT_EQ(pinned_.erase(data), 1u);
  }
  std::size_t pinned() const {
    std::lock_guard lock(mutex_);
    return pinned_.size();
  }

  bool refusing = false;
  std::size_t most = 0;

 private:
  mutable std::mutex mutex_;
  std::map<void*, std::size_t> pinned_;
};

TEST(SlabPool, GivesAlignedMemoryOfTheBytesAskedFor) {
  SlabPool pool(nullptr);
  for (const std::size_t bytes : {0, 1, 63, 64, 4'096, 4'097, 1'000'000}) {
    const SlabPtr slab = pool.acquire(bytes);
    ASSERT_NE(slab, nullptr);
    EXPECT_GE(slab->capacity(), bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(slab->data()) % kSlabAlignment, 0u);
    std::memset(slab->data(), 0xAB, bytes);
    EXPECT_FALSE(slab->pinned());
  }
}

TEST(SlabPool, UsesASlabAgainOnlyAfterItsLastReferenceDropped) {
  SlabPool pool(nullptr);
  SlabPtr first = pool.acquire(100);
  const std::byte* memory = first->data();
  SlabPtr held = first;
  first = nullptr;
  SlabPtr second = pool.acquire(100);
  EXPECT_NE(second->data(), memory);
  EXPECT_EQ(pool.allocated(), 2);
  held = nullptr;
  EXPECT_EQ(pool.acquire(100)->data(), memory);
  EXPECT_EQ(pool.allocated(), 2);
}

TEST(SlabPool, ReplacesASlabThatIsTooSmall) {
  SlabPool pool(nullptr);
  pool.acquire(100);
  const std::byte* large = pool.acquire(100'000)->data();
  EXPECT_EQ(pool.allocated(), 2);
  EXPECT_EQ(pool.acquire(100)->data(), large);
  EXPECT_EQ(pool.acquire(100'000)->data(), large);
  EXPECT_EQ(pool.allocated(), 2);
}

TEST(SlabPool, NeverHasMoreSlabsThanWereOutAtOnce) {
  const auto pinner = std::make_shared<FakePinner>();
  SlabPool pool(pinner);
  for (std::size_t bytes = 4'096; bytes <= std::size_t{1} << 22; bytes *= 2) {
    std::vector<SlabPtr> out = {pool.acquire(bytes), pool.acquire(bytes)};
    EXPECT_LE(pinner->pinned(), 2u);
    out.clear();
    EXPECT_LE(pinner->pinned(), 2u);
  }
  EXPECT_EQ(pinner->most, 2u);
}

TEST(SlabPool, PinsEachSlabOnceAndUnpinsItBeforeItIsFreed) {
  const auto pinner = std::make_shared<FakePinner>();
  {
    SlabPool pool(pinner);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(pool.acquire(100)->pinned());
    EXPECT_EQ(pool.allocated(), 1);
    EXPECT_EQ(pool.pinned(), 1);
    EXPECT_EQ(pinner->pinned(), 1u);
  }
  EXPECT_EQ(pinner->pinned(), 0u);
}

TEST(SlabPool, ServesUnpinnedMemoryWhereItCannotBePinned) {
  const auto pinner = std::make_shared<FakePinner>();
  pinner->refusing = true;
  SlabPool pool(pinner);
  EXPECT_FALSE(pool.acquire(100)->pinned());
  EXPECT_EQ(pool.allocated(), 1);
  EXPECT_EQ(pool.pinned(), 0);
}

TEST(SlabPool, SaysWhenMemoryIsOutAndGoesOn) {
  const auto pinner = std::make_shared<FakePinner>();
  SlabPool pool(pinner);
  EXPECT_EQ(pool.acquire(std::size_t{1} << 60), nullptr);
  EXPECT_EQ(pool.allocated(), 0);
  EXPECT_EQ(pinner->pinned(), 0u);
  EXPECT_NE(pool.acquire(100), nullptr);
}

TEST(SlabPool, IsOutlivedByItsSlabs) {
  const auto pinner = std::make_shared<FakePinner>();
  auto pool = std::make_unique<SlabPool>(pinner);
  SlabPtr slab = pool->acquire(100);
  pool = nullptr;
  std::memset(slab->data(), 1, slab->capacity());
  EXPECT_EQ(pinner->pinned(), 1u);
  slab = nullptr;
  EXPECT_EQ(pinner->pinned(), 0u);
}

// References are dropped by other threads than acquire; no two holders ever share a slab.
TEST(SlabPool, SharesNoSlabBetweenThreads) {
  constexpr int kThreads = 4, kRounds = 2'000;
  const auto pinner = std::make_shared<FakePinner>();
  SlabPool pool(pinner);
  std::vector<std::thread> threads;
  std::mutex others_mutex;
  std::vector<SlabPtr> others;  // dropped by whoever comes next
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kRounds; ++i) {
        SlabPtr slab = pool.acquire(64 + static_cast<std::size_t>(i % 3) * 5'000);
        std::memset(slab->data(), t, 64);
        for (int byte = 0; byte < 64; ++byte) ASSERT_EQ(slab->data()[byte], static_cast<std::byte>(t));
        std::lock_guard lock(others_mutex);
        if (others.size() < kThreads) {
          others.push_back(std::move(slab));
        } else {
          others.clear();
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  others.clear();
  EXPECT_LE(pinner->most, 2u * kThreads);  // each held one, and as many were left to others
}

}  // namespace
}  // namespace headrace
