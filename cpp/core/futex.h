// SPDX-License-Identifier: Apache-2.0
//
// LinuxFutex: sleeping on a 32-bit word until somebody changes it, by the bare system call.
//
// Thread safety: every function from any thread.
// Ownership: none; the word outlives every sleeper and every waker.
// Progress: a wait may return for no reason, so its caller looks at the word again; a wake never blocks.

#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>
#include <ctime>

namespace headrace {

class LinuxFutex {
 public:
  using Word = std::atomic<std::uint32_t>;
  static_assert(sizeof(Word) == sizeof(std::uint32_t) && Word::is_always_lock_free);

  // Sleeps if `word` is still `expected`, until a wake.
  static void wait(Word& word, std::uint32_t expected) { call(word, FUTEX_WAIT_PRIVATE, expected, nullptr, 0); }

  // The same, and no longer than until `deadline_ns` of CLOCK_MONOTONIC.
  static void wait_until(Word& word, std::uint32_t expected, std::int64_t deadline_ns) {
    constexpr std::int64_t kSecond = 1'000'000'000;
    const timespec deadline{.tv_sec = deadline_ns / kSecond, .tv_nsec = deadline_ns % kSecond};
    call(word, FUTEX_WAIT_BITSET_PRIVATE, expected, &deadline, FUTEX_BITSET_MATCH_ANY);
  }

  // Ends the sleep of one, or of all, of those who sleep on `word` now.  REQUIRES: the word was changed before.
  static void wake_one(Word& word) { call(word, FUTEX_WAKE_PRIVATE, 1, nullptr, 0); }
  static void wake_all(Word& word) { call(word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, 0); }

 private:
  static void call(Word& word, int operation, std::uint32_t value, const timespec* deadline, std::uint32_t bits) {
    syscall(SYS_futex, &word, operation, value, deadline, nullptr, bits);
  }
};

}  // namespace headrace
