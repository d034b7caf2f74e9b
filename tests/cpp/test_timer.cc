// SPDX-License-Identifier: Apache-2.0

#include <dirent.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/timer.h"
#include "fake_clock.h"

namespace headrace {
namespace {

constexpr std::int64_t kMillisecond = 1'000'000;
constexpr std::int64_t kStart = 1'000'000'000;

// Records when it was called, and asks for what `next` says.
class Recorder final : public TimerClient {
 public:
  explicit Recorder(std::function<std::int64_t(std::int64_t)> next = [](std::int64_t) { return kNever; })
      : next_(std::move(next)) {}

  std::int64_t on_timer(std::int64_t now_ns) override {
    calls.push_back(now_ns);
    return next_(now_ns);
  }

  std::vector<std::int64_t> calls;

 private:
  std::function<std::int64_t(std::int64_t)> next_;
};

class TimerWithoutThread : public testing::Test {
 protected:
  FakeClock clock_{kStart};
  Timer timer_{clock_};
};

TEST_F(TimerWithoutThread, CallsNobodyOneTickBeforeAndOnceAtTheTime) {
  Recorder window;
  timer_.add(&window);
  timer_.call_by(window, kStart + 10 * kMillisecond);
  EXPECT_EQ(timer_.fire_due(kStart + 10 * kMillisecond - 1), kStart + 10 * kMillisecond);
  EXPECT_TRUE(window.calls.empty());
  EXPECT_EQ(timer_.fire_due(kStart + 10 * kMillisecond), kNever);
  EXPECT_EQ(timer_.fire_due(kStart + 20 * kMillisecond), kNever);
  EXPECT_EQ(window.calls, std::vector{kStart + 10 * kMillisecond});
  timer_.remove(&window);
}

TEST_F(TimerWithoutThread, KeepsTheEarliestOfSeveralTimes) {
  Recorder client;
  timer_.add(&client);
  timer_.call_by(client, kStart + 5);
  timer_.call_by(client, kStart + 3);
  timer_.call_by(client, kStart + 4);
  EXPECT_EQ(client.was_due_ns(), kStart + 3);
  EXPECT_EQ(timer_.fire_due(kStart + 2), kStart + 3);
  timer_.remove(&client);
}

TEST_F(TimerWithoutThread, CallsAgainWhenTheClientSays) {
  Recorder client([](std::int64_t now_ns) { return now_ns < kStart + 3 ? now_ns + 1 : kNever; });
  timer_.add(&client);
  timer_.call_by(client, kStart + 1);
  for (std::int64_t now_ns = kStart; now_ns < kStart + 10; ++now_ns) timer_.fire_due(now_ns);
  EXPECT_EQ(client.calls, (std::vector{kStart + 1, kStart + 2, kStart + 3}));
  timer_.remove(&client);
}

TEST_F(TimerWithoutThread, RemembersATimeThatIsSetDuringTheCall) {
  Timer& timer = timer_;
  Recorder* self = nullptr;
  Recorder client([&](std::int64_t now_ns) {
    if (now_ns == kStart + 1) timer.call_by(*self, kStart + 7);
    return kNever;
  });
  self = &client;
  timer_.add(&client);
  timer_.call_by(client, kStart + 1);
  EXPECT_EQ(timer_.fire_due(kStart + 1), kStart + 7);
  timer_.remove(&client);
}

TEST_F(TimerWithoutThread, CallsOnlyThoseWhoseTimeHasCome) {
  Recorder early, late, idle;
  for (Recorder* client : {&early, &late, &idle}) timer_.add(client);
  timer_.call_by(early, kStart + 1);
  timer_.call_by(late, kStart + 9);
  EXPECT_EQ(timer_.fire_due(kStart + 5), kStart + 9);
  EXPECT_EQ(early.calls.size(), 1u);
  EXPECT_TRUE(late.calls.empty());
  EXPECT_TRUE(idle.calls.empty());
  for (Recorder* client : {&early, &late, &idle}) timer_.remove(client);
}

TEST_F(TimerWithoutThread, NeverCallsAClientThatWasRemoved) {
  Recorder gone, kept;
  timer_.add(&gone);
  timer_.add(&kept);
  timer_.call_by(gone, kStart + 1);
  timer_.call_by(kept, kStart + 1);
  timer_.remove(&gone);
  EXPECT_EQ(timer_.fire_due(kStart + 1), kNever);
  EXPECT_TRUE(gone.calls.empty());
  EXPECT_EQ(kept.calls.size(), 1u);
  timer_.remove(&kept);
}

// With the thread and real time: only that things happen, and not too early, never how soon.

// Says through a future that it was called, once.
class Alarm final : public TimerClient {
 public:
  std::int64_t on_timer(std::int64_t now_ns) override {
    if (!called_at_ns_set_) called_at_ns_.set_value(now_ns);
    called_at_ns_set_ = true;
    return kNever;
  }

  std::int64_t wait_called_ns() {
    std::future<std::int64_t> called = called_at_ns_.get_future();
    if (called.wait_for(std::chrono::seconds(60)) != std::future_status::ready) return kNever;
    return called.get();
  }

 private:
  std::promise<std::int64_t> called_at_ns_;
  bool called_at_ns_set_ = false;
};

class TimerThread : public testing::Test {
 protected:
  void SetUp() override { timer_.start(); }

  SystemClock clock_;
  Timer timer_{clock_};
};

TEST_F(TimerThread, CallsAtTheTimeAndNotBefore) {
  Alarm alarm;
  timer_.add(&alarm);
  const std::int64_t due_ns = clock_.now_ns() + 5 * kMillisecond;
  timer_.call_by(alarm, due_ns);
  const std::int64_t called_at_ns = alarm.wait_called_ns();
  ASSERT_NE(called_at_ns, kNever);
  EXPECT_GE(called_at_ns, due_ns);
  timer_.remove(&alarm);
}

TEST_F(TimerThread, WakesForATimeBeforeTheOneItSleepsUntil) {
  Alarm late, early;
  timer_.add(&late);
  timer_.add(&early);
  timer_.call_by(late, clock_.now_ns() + 3'600'000 * kMillisecond);
  timer_.call_by(early, clock_.now_ns() + kMillisecond);
  EXPECT_NE(early.wait_called_ns(), kNever);
  timer_.remove(&late);
  timer_.remove(&early);
}

TEST_F(TimerThread, ServesAClientWhoseTimeWasSetBeforeItWasAdded) {
  Alarm alarm;
  timer_.call_by(alarm, clock_.now_ns());
  timer_.add(&alarm);
  EXPECT_NE(alarm.wait_called_ns(), kNever);
  timer_.remove(&alarm);
}

TEST_F(TimerThread, StopsWhileItSleepsAndStartsAgain) {
  timer_.stop();
  timer_.stop();
  timer_.start();
  timer_.start();
  Alarm alarm;
  timer_.add(&alarm);
  timer_.call_by(alarm, clock_.now_ns());
  EXPECT_NE(alarm.wait_called_ns(), kNever);
  timer_.remove(&alarm);
}

TEST_F(TimerThread, RemovesAClientOnlyWhenItsCallHasEnded) {
  std::promise<void> entered, removed;
  std::future<void> removed_during_call = removed.get_future();
  auto status = std::future_status::ready;
  Recorder client([&](std::int64_t) {
    entered.set_value();
    status = removed_during_call.wait_for(std::chrono::milliseconds(20));
    return kNever;
  });
  timer_.add(&client);
  timer_.call_by(client, clock_.now_ns());
  entered.get_future().wait();
  timer_.remove(&client);
  removed.set_value();
  EXPECT_EQ(status, std::future_status::timeout);
}

// A long call for one client is no reason for a remove() of another to wait.
TEST_F(TimerThread, RemovesOthersDuringACall) {
  std::promise<void> entered, leave;
  Recorder busy([&](std::int64_t) {
    entered.set_value();
    leave.get_future().wait();
    return kNever;
  });
  Recorder other;
  timer_.add(&busy);
  timer_.add(&other);
  timer_.call_by(busy, clock_.now_ns());
  entered.get_future().wait();
  timer_.remove(&other);
  leave.set_value();
  timer_.remove(&busy);
}

// Producers lower due times at random while clients come and go: every last time is served.
TEST_F(TimerThread, ForgetsNoTimeWhateverProducersDo) {
  constexpr int kProducers = 3, kRounds = 300;
  std::vector<std::thread> producers;
  std::atomic<int> served{0};
  for (int p = 0; p < kProducers; ++p) {
    producers.emplace_back([&, p] {
      for (int round = 0; round < kRounds; ++round) {
        Alarm alarm;
        timer_.add(&alarm);
        const std::int64_t now_ns = clock_.now_ns();
        timer_.call_by(alarm, now_ns + 3'600'000 * kMillisecond);
        timer_.call_by(alarm, now_ns + (round * (p + 1)) % 50 * 1'000);
        if (alarm.wait_called_ns() != kNever) served.fetch_add(1);
        timer_.remove(&alarm);
      }
    });
  }
  for (std::thread& producer : producers) producer.join();
  EXPECT_EQ(served.load(), kProducers * kRounds);
}

// The thread of this process that is called `name`; empty if there is none.
std::string thread_directory(const std::string& name) {
  std::string found;
  DIR* tasks = opendir("/proc/self/task");
  while (const dirent* task = readdir(tasks)) {
    const std::string directory = std::string("/proc/self/task/") + task->d_name;
    std::string comm;
    std::getline(std::ifstream(directory + "/comm"), comm);
    if (comm == name) found = directory;
  }
  closedir(tasks);
  return found;
}

std::int64_t voluntary_switches(const std::string& directory) {
  std::ifstream status(directory + "/status");
  for (std::string line; std::getline(status, line);)
    if (line.rfind("voluntary_ctxt_switches:", 0) == 0) return std::stoll(line.substr(line.find(':') + 1));
  return -1;
}

TEST_F(TimerThread, HasANameAndSleepsWhileNothingIsDue) {
  Alarm first, second;
  timer_.add(&first);
  timer_.add(&second);
  timer_.call_by(first, clock_.now_ns());
  ASSERT_NE(first.wait_called_ns(), kNever);
  const std::string directory = thread_directory("headrace-timer");
  ASSERT_FALSE(directory.empty());
  const std::int64_t before = voluntary_switches(directory);
  timer_.call_by(second, clock_.now_ns() + 200 * kMillisecond);
  ASSERT_NE(second.wait_called_ns(), kNever);
  // To sleep after the first call, awake to hear of the second, awake at its time; no more than that for 200 ms.
  EXPECT_LE(voluntary_switches(directory) - before, 10);
  timer_.remove(&first);
  timer_.remove(&second);
}

TEST(TimerStop, MayBeCalledByTwoAtOnce) {
  const SystemClock clock;
  for (int round = 0; round < 100; ++round) {
    Timer timer(clock);
    timer.start();
    std::thread other([&] { timer.stop(); });
    timer.stop();
    other.join();
  }
}

}  // namespace
}  // namespace headrace
