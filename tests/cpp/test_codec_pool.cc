// SPDX-License-Identifier: Apache-2.0

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <latch>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "net/codec_pool.h"

namespace headrace {
namespace {

TEST(CodecPool, WorkRunsOnAThreadOfThePool) {
  CodecPool pool(1);
  std::promise<std::thread::id> ran;
  pool.run([&ran] { ran.set_value(std::this_thread::get_id()); });
  EXPECT_NE(ran.get_future().get(), std::this_thread::get_id());
}

TEST(CodecPool, AsMuchRunsAtATimeAsThereAreThreads) {
  CodecPool pool(3);
  std::latch all(3), done(3);
  for (int i = 0; i < 3; ++i)
    pool.run([&] {
      all.arrive_and_wait();  // none of them ends before all run
      done.count_down();
    });
  done.wait();
}

TEST(CodecPool, WorkIsDoneInOrderAndAllOfIt) {
  CodecPool pool(1);
  std::vector<int> order;  // by the one thread
  std::promise<void> last;
  for (int i = 0; i < 100; ++i) pool.run([&order, i] { order.push_back(i); });
  pool.run([&last] { last.set_value(); });
  last.get_future().wait();
  ASSERT_EQ(order.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
}

TEST(CodecPool, CloseWaitsForWhatRunsAndDropsWhatWaits) {
  CodecPool pool(1);
  std::promise<void> began, may_end;
  std::atomic<bool> ended = false, dropped_ran = false;
  pool.run([&] {
    began.set_value();
    may_end.get_future().wait();
    ended = true;
  });
  auto kept = std::make_shared<int>(1);
  const std::weak_ptr<int> watched = kept;
  pool.run([&dropped_ran, kept = std::move(kept)] { dropped_ran = true; });
  began.get_future().wait();
  EXPECT_FALSE(pool.is_closed());
  std::thread closing([&pool] { pool.close(); });
  while (!pool.is_closed()) std::this_thread::yield();
  may_end.set_value();
  closing.join();
  EXPECT_TRUE(ended);
  EXPECT_FALSE(dropped_ran);
  EXPECT_TRUE(watched.expired());
  pool.run([&dropped_ran] { dropped_ran = true; });
  pool.close();
  EXPECT_FALSE(dropped_ran);
}

}  // namespace
}  // namespace headrace
