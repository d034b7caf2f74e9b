// SPDX-License-Identifier: Apache-2.0
//
// TensorFlow Serving's scheduler, SharedBatchScheduler, from the headers and libraries of the tensorflow package, as
// tensorflow_model_server sets it up for a session: one queue, batches split nowhere.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

// The package was built with this; its headers want to be told.
#define EIGEN_MAX_ALIGN_BYTES 64
#include "tensorflow/core/kernels/batching_util/shared_batch_scheduler.h"

namespace headrace::rivals {

template <typename Payload>
class SharedBatchScheduler {
 public:
  struct Task final : tensorflow::serving::BatchTask {
    explicit Task(Payload payload) : payload(payload) {}
    std::size_t size() const override { return 1; }
    Payload payload;
  };
  using Batch = tensorflow::serving::Batch<Task>;

  struct Options {
    int num_batch_threads = 1;
    std::size_t max_batch_size = 64;
    std::size_t max_enqueued_batches = 64;
    std::int64_t batch_timeout_micros = 0;
  };

  // `process` gets each batch, closed, on a batch thread.  Throws std::runtime_error.
  SharedBatchScheduler(const Options& options, std::function<void(Batch&)> process) {
    typename Scheduler::Options scheduler_options;
    scheduler_options.num_batch_threads = options.num_batch_threads;
    check(Scheduler::Create(scheduler_options, &scheduler_));
    typename Scheduler::QueueOptions queue_options;
    queue_options.input_batch_size_limit = options.max_batch_size;
    queue_options.max_execution_batch_size = options.max_batch_size;
    queue_options.max_enqueued_batches = options.max_enqueued_batches;
    queue_options.batch_timeout_micros = options.batch_timeout_micros;
    check(scheduler_->AddQueue(
        queue_options,
        [process = std::move(process)](std::unique_ptr<Batch> batch) {
          batch->WaitUntilClosed();
          process(*batch);
        },
        &queue_));
  }

  // Whether there was room.
  bool submit(Payload payload) {
    auto task = std::make_unique<Task>(payload);
    return queue_->Schedule(&task).ok();
  }

 private:
  using Scheduler = tensorflow::serving::SharedBatchScheduler<Task>;

  template <typename Status>
  static void check(const Status& status) {
    if (!status.ok()) throw std::runtime_error(std::string(status.message()));
  }

  std::shared_ptr<Scheduler> scheduler_;
  std::unique_ptr<tensorflow::serving::BatchScheduler<Task>> queue_;  // its end waits for what it has accepted
};

}  // namespace headrace::rivals
