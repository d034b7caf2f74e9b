// SPDX-License-Identifier: Apache-2.0
//
// ClosedLoop: keeps a fixed number of requests on their way through a batcher, from one thread, as a front end does;
// what comes back is handed over through a mailbox, a batch at a time, whatever the batcher.
//
// Thread safety: returned() from any thread, all else from the driver's.
// Ownership: tickets are the loop's, and outlive the batcher's use of them.

#pragma once

#include <benchmark/benchmark.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/mailbox.h"
#include "core/parking.h"

namespace headrace {

// What stands for a request on its way.
struct alignas(kCacheLine) Ticket {
  Ticket* next = nullptr;
};

class ClosedLoop {
 public:
  explicit ClosedLoop(std::size_t in_flight) : tickets_(in_flight) {}

  // On a batcher's thread, for each request that it has answered; then flush(), once for each batch.
  void returned(Ticket* ticket) { mailbox_.push(ticket); }
  void flush() { parking_.wake_one(); }

  // Measures what `submit` (void(Ticket*)) and the batcher behind it do: time is per request, from submit to reply
  // with all of them on their way.  Ends with none on its way.
  template <typename Submit>
  void run(benchmark::State& state, Submit submit) {
    const std::size_t round = 64 * tickets_.size();
    while (state.KeepRunningBatch(static_cast<std::int64_t>(round))) {
      const auto start = std::chrono::steady_clock::now();
      for (Ticket& ticket : tickets_) submit(&ticket);
      std::size_t submitted = tickets_.size();
      for (std::size_t answered = 0; answered < round;) {
        for (Ticket* ticket = wait(); ticket != nullptr;) {
          Ticket* next = ticket->next;
          ++answered;
          if (submitted < round) {
            submit(ticket);
            ++submitted;
          }
          ticket = next;
        }
      }
      state.SetIterationTime(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    state.SetItemsProcessed(state.iterations());
  }

 private:
  Ticket* wait() {
    for (;;) {
      if (Ticket* ticket = mailbox_.take_all()) return ticket;
      auto parked = parking_.prepare();
      if (mailbox_.was_empty()) {
        parking_.park(parked);
      } else {
        parking_.cancel(parked);
      }
    }
  }

  std::vector<Ticket> tickets_;
  Mailbox<Ticket> mailbox_;
  Parking<> parking_;
};

}  // namespace headrace
