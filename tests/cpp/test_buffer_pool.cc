// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

#include "net/buffer_pool.h"

namespace headrace {
namespace {

constexpr std::size_t kLarge = 600'000;

TEST(BufferPool, AReleasedBufferIsTheNextOneOfItsSize) {
  BufferPool pool(1 << 20);
  void* const first = pool.allocate(kLarge);
  pool.release(first, kLarge);
  EXPECT_GE(pool.kept_bytes(), kLarge);
  void* const second = pool.allocate(kLarge + 100);  // nearly of its size
  EXPECT_EQ(second, first);
  EXPECT_EQ(pool.kept_bytes(), 0u);
  std::memset(second, 1, kLarge + 100);
  pool.release(second, kLarge + 100);
}

TEST(BufferPool, AnotherSizeGetsAnotherBuffer) {
  BufferPool pool(1 << 20);
  void* const first = pool.allocate(kLarge);
  pool.release(first, kLarge);
  void* const second = pool.allocate(kLarge / 2);
  EXPECT_NE(second, first);
  EXPECT_GE(pool.kept_bytes(), kLarge);
  pool.release(second, kLarge / 2);
}

TEST(BufferPool, SmallOnesAreNotKept) {
  BufferPool pool(1 << 20);
  pool.release(pool.allocate(BufferPool::kBytesLeast - 1), BufferPool::kBytesLeast - 1);
  EXPECT_EQ(pool.kept_bytes(), 0u);
}

TEST(BufferPool, WhatIsKeptHasALimitAndTheOldestGoFirst) {
  BufferPool pool(2 * kLarge);
  void* const old = pool.allocate(kLarge);
  std::vector<void*> others;
  for (int i = 0; i < 4; ++i) others.push_back(pool.allocate(kLarge / 2));
  pool.release(old, kLarge);
  for (void* other : others) pool.release(other, kLarge / 2);
  EXPECT_LE(pool.kept_bytes(), 2 * kLarge);
  EXPECT_GE(pool.kept_bytes(), kLarge);
  void* const newest = pool.allocate(kLarge / 2);
  EXPECT_EQ(newest, others.back());
  pool.release(newest, kLarge / 2);
}

TEST(BufferPool, OneThatIsLargerThanTheLimitIsNotKept) {
  BufferPool pool(kLarge / 2);
  pool.release(pool.allocate(kLarge), kLarge);
  EXPECT_EQ(pool.kept_bytes(), 0u);
}

TEST(BufferPool, TheNumberOfKeptBuffersHasALimit) {
  constexpr std::size_t kMany = 3 * BufferPool::kBuffersMax;
  BufferPool pool(kMany * BufferPool::kBytesLeast);
  std::vector<void*> buffers;
  for (std::size_t i = 0; i < kMany; ++i) buffers.push_back(pool.allocate(BufferPool::kBytesLeast));
  for (void* buffer : buffers) pool.release(buffer, BufferPool::kBytesLeast);
  EXPECT_EQ(pool.kept_bytes(), BufferPool::kBuffersMax * BufferPool::kBytesLeast);
}

TEST(BufferPool, ThreadsNeverShareABuffer) {
  BufferPool pool(8 * kLarge);
  std::vector<std::thread> threads;
  for (int id = 1; id <= 4; ++id)
    threads.emplace_back([&pool, id] {
      for (int i = 0; i < 200; ++i) {
        auto* const memory = static_cast<unsigned char*>(pool.allocate(kLarge));
        std::memset(memory, id, kLarge);
        EXPECT_EQ(memory[i], id);
        EXPECT_EQ(memory[kLarge - 1], id);
        pool.release(memory, kLarge);
      }
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace headrace
