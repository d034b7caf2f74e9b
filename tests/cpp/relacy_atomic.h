// SPDX-License-Identifier: Apache-2.0
//
// RelacyAtomic, RelacyFutex and Checked: what the model checks put in place of std::atomic, the futex and plain
// members, so that relacy runs Mailbox and Parking through their interleavings and through C++'s weak memory.
//
// Include it last: relacy redefines new, delete, assert and the names of the memory orders.

#pragma once

#include <atomic>
#include <cstdint>
#include <source_location>

#include "core/mailbox.h"
#include "core/parking.h"

// relacy's own header comes after everything that must not see its macros.
#include <relacy/relacy.hpp>

namespace headrace {

enum class Operation { kNone, kLoad, kStore, kExchange, kFetchAdd, kCompareExchange };

// Atomics that do `kWeakened`, whatever the code under test asks for, with the order `kTo` at most.  A check must fail
// with them; with Operation::kNone they do what they are asked.
template <Operation kWeakened = Operation::kNone, rl::memory_order kTo = rl::mo_relaxed>
struct Weakened {
  template <typename T>
  class Atomic {
    using Where = std::source_location;

   public:
    Atomic(T value) : atomic_(value) {}  // NOLINT: as std::atomic

    T load(std::memory_order order = kSeqCst, Where where = Where::current()) const {
      return atomic_.load(weaken(Operation::kLoad, order), info(where));
    }
    void store(T value, std::memory_order order = kSeqCst, Where where = Where::current()) {
      atomic_.store(value, weaken(Operation::kStore, order), info(where));
    }
    T exchange(T value, std::memory_order order = kSeqCst, Where where = Where::current()) {
      return atomic_.exchange(value, weaken(Operation::kExchange, order), info(where));
    }
    T fetch_add(T value, std::memory_order order = kSeqCst, Where where = Where::current()) {
      return atomic_.fetch_add(value, weaken(Operation::kFetchAdd, order), info(where));
    }
    bool compare_exchange_weak(T& expected, T desired, std::memory_order order = kSeqCst,
                               Where where = Where::current()) {
      return atomic_.compare_exchange_weak(expected, desired, weaken(Operation::kCompareExchange, order), info(where));
    }

   private:
    friend class RelacyFutex;

    // The names of the orders are relacy's macros by now; these are std's.
    static constexpr std::memory_order kSeqCst = std::memory_order(5);
    static_assert(kSeqCst == std::memory_order::seq_cst && std::memory_order::relaxed == std::memory_order(0));

    static rl::memory_order weaken(Operation operation, std::memory_order asked) {
      const auto order = static_cast<rl::memory_order>(asked);
      return operation == kWeakened && kTo < order ? kTo : order;
    }
    static rl::debug_info info(const Where& where) {
      return rl::debug_info(where.function_name(), where.file_name(), where.line());
    }

    rl::atomic<T> atomic_;
  };
};

static_assert(rl::mo_relaxed == 0 && rl::mo_acquire == 2 && rl::mo_release == 3 && rl::mo_seq_cst == 5,
              "relacy numbers the orders as std does");

// A futex: comparing and going to sleep are one step, and so is a wake.
class RelacyFutex {
 public:
  template <typename Word>
  static void wait(Word& word, std::uint32_t expected) {
    rl::context& context = rl::ctx();
    context.sched();
    if (word.atomic_.debug_value() != expected) return;
    // Without reason, too; but not in a search of all interleavings, which would have no end.
    word.atomic_.wait(context, false, context.is_random_sched(), $);
  }
  template <typename Word>
  static void wake_one(Word& word) {
    wake(word, 1);
  }
  template <typename Word>
  static void wake_all(Word& word) {
    wake(word, 1'000);
  }

 private:
  template <typename Word>
  static void wake(Word& word, rl::thread_id_t count) {
    rl::context& context = rl::ctx();
    context.sched();
    word.atomic_.wake(context, count, $);
  }
};

// A plain member: two threads that touch it without order between them are a data race, which fails the check.
template <typename T>
class Checked {
 public:
  Checked& operator=(T value) {
    value_($) = value;
    return *this;
  }
  operator T() const { return value_($); }  // NOLINT: as a plain member

 private:
  rl::var<T> value_;
};

}  // namespace headrace
