// SPDX-License-Identifier: Apache-2.0
//
// Message: the bytes of one message that a client sends, in one allocation of that size.
//
// Thread safety: filled by one thread, then read only.
// Ownership: keeps its place in the byte budget, and whatever else its readers need for as long as they read.

#pragma once

#include <algorithm>
#include <cstddef>
#include <memory>
#include <new>
#include <span>
#include <utility>

#include "net/byte_budget.h"

namespace headrace {

class Message {
 public:
  // Null where the budget has no room for it, or the system no memory; `keeps` lives as long as the message.
  static std::shared_ptr<Message> try_allocate(std::size_t size, std::shared_ptr<ByteBudget> budget,
                                               std::shared_ptr<const void> keeps) {
    const std::size_t charged = std::min(size, kChargedAtOnce);
    if (!budget->try_take(charged)) return nullptr;
    try {
      const WithBytes<Message> memory{size, size < BufferPool::kBytesLeast ? nullptr : budget};
      return std::allocate_shared<Message>(memory, size, charged, budget, std::move(keeps));
    } catch (const std::bad_alloc&) {
      budget->give_back(charged);
      return nullptr;
    }
  }

  Message(std::size_t size, std::size_t charged, std::shared_ptr<ByteBudget> budget, std::shared_ptr<const void> keeps)
      : size_(size), charged_(charged), budget_(std::move(budget)), keeps_(std::move(keeps)) {}
  Message(const Message&) = delete;
  Message& operator=(const Message&) = delete;
  ~Message() { budget_->give_back(charged_); }

  // Whether the budget has room for the first `bytes` of it.  A large message is charged as it comes: who announces
  // one and sends nothing takes no room from others.
  bool try_charge(std::size_t bytes) {
    if (bytes <= charged_) return true;
    const std::size_t more = std::min(std::max(bytes - charged_, kChargedAtOnce), size_ - charged_);
    if (!budget_->try_take(more)) return false;
    charged_ += more;
    return true;
  }

  std::byte* data() { return reinterpret_cast<std::byte*>(this + 1); }
  std::size_t size() const { return size_; }
  std::span<const std::byte> bytes() { return {data(), size_}; }

 private:
  static constexpr std::size_t kChargedAtOnce = 16 << 10;

  // Allocates room for the bytes behind the object, which stands last in what a shared pointer allocates.
  template <typename T>
  struct WithBytes {
    using value_type = T;

    WithBytes(std::size_t bytes, std::shared_ptr<ByteBudget> pools) : bytes(bytes), pools(std::move(pools)) {}
    template <typename U>
    WithBytes(const WithBytes<U>& other) : bytes(other.bytes), pools(other.pools) {}  // NOLINT: allocators convert
    template <typename U>
    bool operator==(const WithBytes<U>& other) const {
      return bytes == other.bytes;
    }

    T* allocate(std::size_t count) {
      const std::size_t all = count * sizeof(T) + bytes;
      return static_cast<T*>(pools == nullptr ? ::operator new(all) : pools->buffers().allocate(all));
    }
    void deallocate(T* memory, std::size_t count) {
      if (pools == nullptr) return ::operator delete(memory);
      pools->buffers().release(memory, count * sizeof(T) + bytes);
    }

    std::size_t bytes;
    std::shared_ptr<ByteBudget> pools;  // null for small ones, which are many
  };

  const std::size_t size_;
  std::size_t charged_;
  const std::shared_ptr<ByteBudget> budget_;
  const std::shared_ptr<const void> keeps_;
};

using MessagePtr = std::shared_ptr<Message>;

}  // namespace headrace
