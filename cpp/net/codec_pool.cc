// SPDX-License-Identifier: Apache-2.0

#include "net/codec_pool.h"

#include <pthread.h>
#include <signal.h>

#include <system_error>
#include <utility>

namespace headrace {

void CodecPool::run(std::function<void()> work) {
  std::unique_lock lock(mutex_);
  if (is_closed()) return;
  waiting_.push_back(std::move(work));
  if (waiting_.size() <= idle_) {
    lock.unlock();
    changed_.notify_one();
    return;
  }
  if (threads_.size() == static_cast<std::size_t>(threads_max_)) return;
  try {
    threads_.emplace_back([this] { serve(); });
  } catch (const std::system_error&) {
    if (!threads_.empty()) return;  // those that there are do it later
    work = std::move(waiting_.back());
    waiting_.pop_back();
    lock.unlock();
    return work();
  }
  pthread_setname_np(threads_.back().native_handle(), "headrace-codec");
}

void CodecPool::serve() {
  sigset_t signals;  // the process's signals are the main thread's
  sigfillset(&signals);
  pthread_sigmask(SIG_SETMASK, &signals, nullptr);
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    changed_.wait(lock, [this] { return is_closed() || !waiting_.empty(); });
    --idle_;
    if (is_closed()) return;
    {
      const std::function<void()> work = std::move(waiting_.front());
      waiting_.pop_front();
      lock.unlock();
      work();
    }
    lock.lock();
  }
}

void CodecPool::close() {
  std::deque<std::function<void()>> dropped;  // without the mutex: they may be the last to keep something
  std::vector<std::thread> threads;
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
    dropped.swap(waiting_);
    threads.swap(threads_);
  }
  changed_.notify_all();
  for (std::thread& thread : threads) thread.join();
}

}  // namespace headrace
