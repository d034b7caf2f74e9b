// SPDX-License-Identifier: Apache-2.0
//
// FakeRequest and FakeSink: a client that keeps what it sent and what it got.
//
// Thread safety: a request is built by one thread and read after its reply; a sink from any thread.
// Ownership: a request owns the memory of its inputs; a sink outlives its requests.

#pragma once

#include <atomic>
#include <boost/smart_ptr/intrusive_ptr.hpp>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/request.h"
#include "core/status.h"
#include "core/tensor.h"

namespace headrace {

// How long a test waits for an event before it fails.
inline constexpr std::chrono::seconds kEventLimit{60};

class FakeRequest final : public Request {
 public:
  // What a view showed while it lived.
  struct Tensor {
    DType dtype;
    Shape shape;
    std::string bytes;
    std::vector<std::string> strings;
  };

  explicit FakeRequest(ReplySink* sink = nullptr) { this->sink = sink; }
  ~FakeRequest() override {
    if (on_destroyed) on_destroyed();
  }

  // Adds an input of float32 that counts up from `first`.
  FakeRequest& add_floats(Shape shape, float first = 0) {
    std::string bytes;
    for (std::int64_t i = 0; i < shape_elements(shape); ++i, ++first)
      bytes.append(reinterpret_cast<const char*>(&first), sizeof first);
    return add(DType::kFloat, std::move(shape), std::move(bytes));
  }

  FakeRequest& add(DType dtype, Shape shape, std::string bytes) {
    const std::string& kept = kept_.emplace_back(std::move(bytes));
    inputs.push_back({.dtype = dtype,
                      .shape = std::move(shape),
                      .data = reinterpret_cast<const std::byte*>(kept.data()),
                      .bytes = kept.size()});
    return *this;
  }

  FakeRequest& add_strings(Shape shape, std::vector<std::string> strings) {
    std::vector<std::string_view>& views = views_.emplace_back();
    std::size_t bytes = 0;
    for (std::string& string : strings) {
      views.push_back(kept_.emplace_back(std::move(string)));
      bytes += views.back().size();
    }
    inputs.push_back({.dtype = DType::kString, .shape = std::move(shape), .bytes = bytes, .strings = views.data()});
    return *this;
  }

  Status write_reply(std::span<const TensorView> outputs) override {
    ++writes;
    for (const TensorView& output : outputs) {
      Tensor& tensor = reply.emplace_back(Tensor{output.dtype, output.shape, {}, {}});
      if (output.strings != nullptr)
        tensor.strings.assign(output.strings, output.strings + output.elements());
      else
        tensor.bytes.assign(reinterpret_cast<const char*>(output.data), output.bytes);
    }
    return write_status;
  }

  std::vector<float> reply_floats(std::size_t output = 0) const {
    std::vector<float> numbers(reply.at(output).bytes.size() / sizeof(float));
    if (!numbers.empty()) std::memcpy(numbers.data(), reply.at(output).bytes.data(), numbers.size() * sizeof(float));
    return numbers;
  }

  Status write_status;  // what write_reply() says
  std::function<void()> on_destroyed;

  std::vector<Tensor> reply;
  int writes = 0;
  std::atomic<int> replies{0};  // times that it was delivered

 private:
  std::deque<std::string> kept_;
  std::deque<std::vector<std::string_view>> views_;
};

using FakeRequestPtr = boost::intrusive_ptr<FakeRequest>;

class FakeSink final : public ReplySink {
 public:
  void deliver(std::span<const RequestPtr> answered) noexcept override {
    for (const RequestPtr& request : answered) ++static_cast<FakeRequest&>(*request).replies;
    std::lock_guard lock(mutex_);
    replies_ += answered.size();
    call_sizes_.push_back(answered.size());
    changed_.notify_all();
  }

  // Whether that many replies came.
  [[nodiscard]] bool wait_for(std::size_t replies) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kEventLimit, [&] { return replies_ >= replies; });
  }

  std::size_t replies() const {
    std::lock_guard lock(mutex_);
    return replies_;
  }

  // How many replies each call brought.
  std::vector<std::size_t> call_sizes() const {
    std::lock_guard lock(mutex_);
    return call_sizes_;
  }

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t replies_ = 0;
  std::vector<std::size_t> call_sizes_;
};

}  // namespace headrace
