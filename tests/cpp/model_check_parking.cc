// SPDX-License-Identifier: Apache-2.0
//
// Model check of Mailbox and Parking together: two mailboxes on one Parking, as a model's lanes are.
//
//   model_check_parking                  passes if every check holds and every broken variant is found out
//   model_check_parking --broken=NAME    one broken variant; fails, and prints how it went wrong
//
// A lost wake-up shows as a deadlock, an order too weak for the items themselves as a data race.

#include <cstdio>
#include <cstring>
#include <iostream>
#include <sstream>
#include <string_view>

#include "relacy_atomic.h"

namespace headrace {
namespace {

struct Item {
  Checked<Item*> next;
  Checked<int> pushed;
  Checked<int> taken;
};

// The parts that every check has: `MailboxAtomic` and `ParkingAtomic` are a Weakened<...>.
template <typename MailboxAtomic, typename ParkingAtomic>
struct Lanes {
  static constexpr int kMailboxes = 2;

  Mailbox<Item, MailboxAtomic::template Atomic> mailboxes[kMailboxes];
  Parking<ParkingAtomic::template Atomic, RelacyFutex> parking;
  Weakened<>::Atomic<bool> closing{false};

  // Stage 3 of a request's path.
  void push(int mailbox, Item* item) {
    item->pushed = 1;
    item->taken = 0;
    mailboxes[mailbox].push(item);
    parking.wake_one();
  }

  // Empties one mailbox; returns how many items were in it.
  int take(int mailbox) {
    int items = 0;
    for (Item* item = mailboxes[mailbox].take_all(); item != nullptr; item = item->next, ++items) {
      RL_ASSERT(item->pushed == 1 && item->taken == 0);
      item->taken = 1;
    }
    return items;
  }

  // What an executor does before it sleeps, and its sleep.
  void wait() {
    const auto ticket = parking.prepare();
    bool found = closing.load();
    for (int i = 0; i < kMailboxes && !found; ++i) found = !mailboxes[i].was_empty();
    if (!found || !parking.try_cancel(ticket)) parking.park(ticket);
  }

  // What a client does that may work in the place of an executor: 1 if it took its item, and maybe others, itself.
  template <bool kLooksAfterwards>
  int push_or_work(int mailbox, Item* item) {
    if (!parking.try_borrow()) {
      push(mailbox, item);
      return 0;
    }
    item->pushed = 1;
    item->taken = 0;
    mailboxes[mailbox].push(item);
    const int items = take(mailbox);
    parking.give_back();
    if (!kLooksAfterwards) return items;
    if (closing.load()) {
      parking.wake_all();
    } else if (!mailboxes[0].was_empty() || !mailboxes[1].was_empty()) {
      parking.wake_one();
    }
    return items;
  }

  void close() {
    closing.store(true);
    parking.wake_all();
  }
};

// No item stays in a mailbox while every executor sleeps.  Whoever takes the last one closes, and all executors leave.
template <int kProducers, int kItemsEach, int kExecutors, typename MailboxAtomic = Weakened<>,
          typename ParkingAtomic = Weakened<>>
struct EveryItemIsTaken
    : rl::test_suite<EveryItemIsTaken<kProducers, kItemsEach, kExecutors, MailboxAtomic, ParkingAtomic>,
                     kProducers + kExecutors> {
  Lanes<MailboxAtomic, ParkingAtomic> lanes;
  Item items[kProducers][kItemsEach];
  Weakened<>::Atomic<int> taken{0};

  void thread(unsigned index) {
    if (index < kProducers) {
      for (int i = 0; i < kItemsEach; ++i) lanes.push((index + i) % 2, &items[index][i]);
      return;
    }
    while (!lanes.closing.load()) {
      const int items_taken = lanes.take(0) + lanes.take(1);
      if (items_taken == 0) {
        lanes.wait();
      } else if (taken.fetch_add(items_taken) + items_taken == kProducers * kItemsEach) {
        lanes.close();
      }
    }
  }
};

// The same when every producer works in the place of an executor that sleeps.
template <int kProducers, int kItemsEach, int kExecutors, bool kLooksAfterwards = true>
struct BorrowedPlacesLoseNothing
    : rl::test_suite<BorrowedPlacesLoseNothing<kProducers, kItemsEach, kExecutors, kLooksAfterwards>,
                     kProducers + kExecutors> {
  Lanes<Weakened<>, Weakened<>> lanes;
  Item items[kProducers][kItemsEach];
  Weakened<>::Atomic<int> taken{0};

  void count(int items_taken) {
    if (items_taken != 0 && taken.fetch_add(items_taken) + items_taken == kProducers * kItemsEach) lanes.close();
  }

  void thread(unsigned index) {
    if (index < kProducers) {
      for (int i = 0; i < kItemsEach; ++i)
        count(lanes.template push_or_work<kLooksAfterwards>((index + i) % 2, &items[index][i]));
      return;
    }
    while (!lanes.closing.load()) {
      const int items_taken = lanes.take(0) + lanes.take(1);
      if (items_taken == 0) {
        lanes.wait();
      } else {
        count(items_taken);
      }
    }
  }
};

// Nor while one executor sleeps: here each takes what one mailbox holds and is busy with it for ever, so that the
// other's item needs the other executor, and with it a wake-up of its own.
template <typename MailboxAtomic = Weakened<>, typename ParkingAtomic = Weakened<>>
struct EveryPushWakesAnother : rl::test_suite<EveryPushWakesAnother<MailboxAtomic, ParkingAtomic>, 4> {
  static constexpr unsigned kProducers = 2;
  Lanes<MailboxAtomic, ParkingAtomic> lanes;
  Item items[kProducers];

  void thread(unsigned index) {
    if (index < kProducers) {
      lanes.push(index, &items[index]);
      return;
    }
    while (lanes.take(index % 2) == 0 && lanes.take(1 - index % 2) == 0) lanes.wait();
  }
};

// The same with one item after the other: the second push must not count on the sleeper that the first one woke.
struct TwoPushesWakeTwo : rl::test_suite<TwoPushesWakeTwo, 3> {
  Lanes<Weakened<>, Weakened<>> lanes;
  Item items[2];

  void thread(unsigned index) {
    if (index == 0) {
      for (int i = 0; i < 2; ++i) lanes.push(i, &items[i]);
      return;
    }
    while (lanes.take(0) == 0 && lanes.take(1) == 0) lanes.wait();
  }
};

// Shutdown at any moment: every executor leaves, and whatever was pushed before it has been taken.
template <int kProducers, int kExecutors, typename MailboxAtomic = Weakened<>, typename ParkingAtomic = Weakened<>>
struct ShutdownLeavesNothing
    : rl::test_suite<ShutdownLeavesNothing<kProducers, kExecutors, MailboxAtomic, ParkingAtomic>,
                     1 + kProducers + kExecutors> {
  Lanes<MailboxAtomic, ParkingAtomic> lanes;
  Item items[kProducers];
  bool was_in_time[kProducers];  // each written by its producer, read after all threads have ended

  void thread(unsigned index) {
    if (index == 0) {
      lanes.close();
    } else if (index <= kProducers) {
      lanes.push(index % 2, &items[index - 1]);
      was_in_time[index - 1] = !lanes.closing.load();
    } else {
      for (bool leaving = false; !leaving;) {
        leaving = lanes.closing.load();
        if (lanes.take(0) + lanes.take(1) == 0 && !leaving) lanes.wait();
      }
    }
  }

  void after() {
    for (int i = 0; i < kProducers; ++i) RL_ASSERT(items[i].taken == 1 || !was_in_time[i]);
    const int left = lanes.take(0) + lanes.take(1);
    RL_ASSERT(left <= kProducers);
    for (Item& item : items) RL_ASSERT(item.taken == 1);
  }
};

// Whether `Check` holds in all interleavings, in those with at most `bound` forced switches, or in `iterations` random
// ones.  Prints what went wrong, unless it is wanted.
struct Search {
  rl::scheduler_type_e type;
  unsigned bound;
  unsigned long iterations;
};
constexpr Search All() { return {rl::fair_full_search_scheduler_type, 0, 1'000'000'000}; }
constexpr Search Bound(unsigned switches) { return {rl::fair_context_bound_scheduler_type, switches, 1'000'000'000}; }
constexpr Search Random(unsigned long iterations) { return {rl::random_scheduler_type, 0, iterations}; }

template <typename Check>
bool holds(const char* name, Search search, bool verbose = true) {
  rl::ostringstream story, progress;
  rl::test_params params;
  params.search_type = search.type;
  params.context_bound = search.bound;
  params.iteration_count = search.iterations;
  params.output_stream = &story;
  params.progress_stream = &progress;
  const unsigned start_ms = get_tick_count();
  const bool success = rl::simulate<Check>(params);
  std::printf("%-46s %-22s %9lu interleavings %6.1f s  %s\n", name, rl::format(search.type),
              static_cast<unsigned long>(params.stop_iteration), (get_tick_count() - start_ms) / 1000.0,
              success ? "holds" : rl::test_result_str(params.test_result));
  std::fflush(stdout);
  if (!success && verbose) std::puts(story.str().c_str());
  return success;
}

// Each weakens one kind of access of one of the two, which no other test may need to notice.
template <rl::memory_order kTo>
using WeakPush = Weakened<Operation::kCompareExchange, kTo>;
template <rl::memory_order kTo>
using WeakTake = Weakened<Operation::kExchange, kTo>;
using WeakLook =
    Weakened<Operation::kLoad, rl::mo_acquire>;  // of the sleeper at the mailbox, or of the producer at Parking
using WeakAnnounce = Weakened<Operation::kFetchAdd, rl::mo_acq_rel>;  // of the sleeper

template <typename MailboxAtomic, typename ParkingAtomic>
bool broken(const char* name, bool verbose) {
  return holds<EveryItemIsTaken<2, 1, 2, MailboxAtomic, ParkingAtomic>>(name, Random(1'000'000), verbose);
}

bool broken_give_back(const char* name, bool verbose) {
  return holds<BorrowedPlacesLoseNothing<2, 1, 1, false>>(name, Random(1'000'000), verbose);
}

struct Broken {
  const char* name;
  bool (*holds)(const char* name, bool verbose);
};

constexpr Broken kBroken[] = {
    {"push-relaxed", broken<WeakPush<rl::mo_relaxed>, Weakened<>>},
    {"push-acq_rel", broken<WeakPush<rl::mo_acq_rel>, Weakened<>>},
    {"take-relaxed", broken<WeakTake<rl::mo_relaxed>, Weakened<>>},
    {"sleepers-look-acquire", broken<WeakLook, Weakened<>>},
    {"producers-look-acquire", broken<Weakened<>, WeakLook>},
    {"announce-acq_rel", broken<Weakened<>, WeakAnnounce>},
    {"give-back-without-a-look", broken_give_back},
};

bool check() {
  bool ok = true;
  ok &= holds<EveryItemIsTaken<1, 1, 1>>("every item is taken, 1 producer, 1 executor", All());
  ok &= holds<EveryItemIsTaken<1, 2, 1>>("every item is taken, 1x2, 1", Bound(3));
  ok &= holds<EveryItemIsTaken<2, 1, 1>>("every item is taken, 2x1, 1", Bound(3));
  ok &= holds<EveryItemIsTaken<2, 1, 2>>("every item is taken, 2x1, 2", Bound(1));
  ok &= holds<EveryItemIsTaken<2, 1, 2>>("every item is taken, 2x1, 2", Random(1'000'000));
  ok &= holds<EveryItemIsTaken<3, 2, 3>>("every item is taken, 3x2, 3", Random(300'000));
  ok &= holds<BorrowedPlacesLoseNothing<1, 1, 1>>("borrowed places lose nothing, 1 producer, 1", Bound(5));
  ok &= holds<BorrowedPlacesLoseNothing<2, 1, 1>>("borrowed places lose nothing, 2x1, 1", Bound(3));
  ok &= holds<BorrowedPlacesLoseNothing<2, 1, 2>>("borrowed places lose nothing, 2x1, 2", Random(300'000));
  ok &= holds<BorrowedPlacesLoseNothing<3, 2, 2>>("borrowed places lose nothing, 3x2, 2", Random(300'000));
  ok &= holds<TwoPushesWakeTwo>("two pushes wake two executors, 1x2, 2", Bound(3));
  ok &= holds<TwoPushesWakeTwo>("two pushes wake two executors, 1x2, 2", Random(300'000));
  ok &= holds<EveryPushWakesAnother<>>("every push wakes another executor, 2x1, 2", Bound(2));
  ok &= holds<EveryPushWakesAnother<>>("every push wakes another executor, 2x1, 2", Random(300'000));
  ok &= holds<ShutdownLeavesNothing<1, 1>>("shutdown leaves nothing, 1 producer, 1", Bound(3));
  ok &= holds<ShutdownLeavesNothing<2, 2>>("shutdown leaves nothing, 2 producers, 2", Bound(1));
  ok &= holds<ShutdownLeavesNothing<3, 2>>("shutdown leaves nothing, 3 producers, 2", Random(300'000));
  for (const Broken& broken : kBroken) {
    if (!broken.holds(broken.name, false)) continue;
    std::printf("%s was not found out: the check proves nothing\n", broken.name);
    ok = false;
  }
  return ok;
}

}  // namespace
}  // namespace headrace

int main(int argc, char** argv) {
  using headrace::kBroken;
  if (argc == 1) return headrace::check() ? 0 : 1;
  const std::string_view prefix = "--broken=";
  const std::string_view argument = argv[1];
  for (const auto& broken : kBroken)
    if (argument.substr(0, prefix.size()) == prefix && argument.substr(prefix.size()) == broken.name)
      return broken.holds(broken.name, true) ? 0 : 1;
  std::fprintf(stderr, "usage: model_check_parking [--broken=NAME]\n");
  return 2;
}
