// SPDX-License-Identifier: Apache-2.0
//
// Parking: where the executors of a model sleep while none of its lanes has anything for them.
//
//   executor:  auto ticket = parking.prepare();
//              if (no lane has anything for me || !parking.try_cancel(ticket)) parking.park(ticket);
//   producer:  mailbox.push(request); parking.wake_one();
//   a thread that works in the place of a sleeping executor:
//              if (parking.try_borrow()) { work; parking.give_back(); if (a lane has something) parking.wake_one(); }
//
// Thread safety: every function from any thread.
// Ownership: outlives its sleepers and wakers.
// Progress: wake_*() are lock-free, and one load where nobody is parked or all who are have been woken already.  A
//   stopped producer holds up nobody but the one whom it is about to wake.
// Invariants: in `word_`, signals <= parked <= 65,535.  parked counts those between prepare() and the end of
//   try_cancel() or park(), less the places that are borrowed; signals those of them who have been called and have not
//   left.  Both are exact: no wake is lost, and no system call is made for a sleeper who has been called already, nor
//   for one whose place is borrowed: whoever borrowed it looks once more when it is given back, as a sleeper does.
//
// Why no wake is lost.  push() and prepare() are read-modify-writes, the looks that follow them are loads, all seq_cst:
// either the producer's look sees the sleeper, or the sleeper's look sees the request.  In the first case a signal is
// given.  Signals are not addressed: one parked thread takes it, or cancels.  If another than the one whom the kernel
// woke takes it, it looks at every lane after it was given.  If it is cancelled, a canceller takes the signal with it
// only when every other parked thread has one of its own.  A sleeper enters the kernel's queue only while signals is 0,
// and each signal is followed by a wake, so that while anyone is in that queue at least `signals` threads are on their
// way out of it.

#pragma once

#include <atomic>
#include <cassert>
#include <cstddef>
#include <cstdint>

#include "core/futex.h"

namespace headrace {

inline constexpr std::size_t kCacheLine = 64;

// `Atomic` and `Futex` are the real ones, but for the model check.
template <template <typename> class Atomic = std::atomic, typename Futex = LinuxFutex>
class alignas(kCacheLine) Parking {
 public:
  // What prepare() gives: the duty to call park(), or try_cancel() until it succeeds, once.
  class [[nodiscard]] Ticket {
    friend class Parking;
    Ticket() = default;
  };

  Parking() = default;
  Parking(const Parking&) = delete;
  Parking& operator=(const Parking&) = delete;

  // Says that the caller is about to sleep.  It must look once more at whatever could keep it awake.
  Ticket prepare() {
    [[maybe_unused]] const std::uint32_t before = word_.fetch_add(kParked);  // (A) read by (B)
    assert(parked(before) < kParkedMax);
    return Ticket();
  }

  // The look found something: the caller goes back to work.  False, and it must park(), where every place is borrowed:
  // then as many work as there are executors.
  [[nodiscard]] bool try_cancel(const Ticket&) {
    std::uint32_t word = word_.load();
    do {
      if (parked(word) == 0) return false;
    } while (
        !word_.compare_exchange_weak(word, signals(word) == parked(word) ? word - kSignal - kParked : word - kParked));
    return true;
  }

  // The look found nothing: sleeps until a wake that came after prepare().
  void park(const Ticket&) {
    std::uint32_t word = word_.load();
    for (;;) {
      if (signals(word) == 0) {
        futex_.wait(word_, word);
        word = word_.load();
      } else if (word_.compare_exchange_weak(word, word - kSignal - kParked)) {
        return;
      }
    }
  }

  // Wakes one of those who prepared before and have not been woken; the caller has published what they shall see.
  void wake_one() {
    std::uint32_t word = word_.load();  // (B)
    do {
      if (signals(word) == parked(word)) return;
    } while (!word_.compare_exchange_weak(word, word + kSignal));
    futex_.wake_one(word_);
  }

  // Wakes all of them.
  void wake_all() {
    std::uint32_t word = word_.load();  // (B)
    do {
      if (signals(word) == parked(word)) return;
    } while (!word_.compare_exchange_weak(word, parked(word) * (kParked + kSignal)));
    futex_.wake_all(word_);
  }

  // Whether the caller may work in the place of one who sleeps and has not been called, until give_back().
  [[nodiscard]] bool try_borrow() {
    std::uint32_t word = word_.load();
    do {
      if (signals(word) == parked(word)) return false;
    } while (!word_.compare_exchange_weak(word, word - kParked));
    return true;
  }

  // Ends that.  As after prepare(), the caller must look once more, and wake_one() if there is anything.
  void give_back() { word_.fetch_add(kParked); }

  // How many had prepared or were asleep at some moment during the call, and were not woken yet.
  std::uint32_t was_parked() const {
    const std::uint32_t word = word_.load();
    return parked(word) - signals(word);
  }

 private:
  static constexpr std::uint32_t kParked = 1;
  static constexpr std::uint32_t kSignal = 1u << 16;
  static constexpr std::uint32_t kParkedMax = kSignal - 1;

  static constexpr std::uint32_t parked(std::uint32_t word) { return word & kParkedMax; }
  static constexpr std::uint32_t signals(std::uint32_t word) { return word >> 16; }

  // One word, so that both counts move together; a line of its own, for producers read it after every push.
  Atomic<std::uint32_t> word_{0};
  [[no_unique_address]] Futex futex_;
};

}  // namespace headrace
