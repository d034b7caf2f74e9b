// SPDX-License-Identifier: Apache-2.0
//
// Stages 2, 3 and 8 of 8 for a transport in Python: decode and enqueue; hand back a whole batch with one wake-up.

#include "bind/predict_queue.h"

#include <string_view>
#include <utility>

#include "bind/event_fd.h"
#include "bind/gil.h"
#include "bind/kept_object.h"
#include "bind/seconds.h"
#include "bind/status_error.h"

namespace py = pybind11;

namespace headrace {
namespace {

// From here on decoding takes so long that other Python threads should run meanwhile.
constexpr std::size_t kLargeMessageBytes = 64 << 10;

}  // namespace

// The answers that wait to be taken.
class PredictQueue::Answers final : public ReplySink {
 public:
  struct Answer {
    std::uint64_t token = 0;
    Status status;
    RequestPtr request;  // null where the message was refused
  };

  int fileno() const { return fd_.fileno(); }

  void deliver(std::span<const RequestPtr> answered) noexcept override {
    std::lock_guard lock(mutex_);
    if (closed_) return;
    for (const RequestPtr& request : answered) waiting_.push_back({request->token, request->status, request});
    fd_.signal();
  }

  void refuse(std::uint64_t token, Status status) {
    std::lock_guard lock(mutex_);
    waiting_.push_back({token, std::move(status), nullptr});
    fd_.signal();
  }

  std::vector<Answer> take() {
    std::vector<Answer> taken;
    std::lock_guard lock(mutex_);
    taken.swap(waiting_);
    fd_.clear();
    return taken;
  }

  // Nobody takes answers any more; those that nobody took are let go of.  They keep their messages, and those this.
  void close() {
    std::vector<Answer> left;
    std::lock_guard lock(mutex_);
    closed_ = true;
    left.swap(waiting_);
  }

 private:
  std::mutex mutex_;
  EventFd fd_;                   // guarded by mutex_
  std::vector<Answer> waiting_;  // guarded by mutex_
  bool closed_ = false;          // guarded by mutex_
};

PredictQueue::PredictQueue(std::shared_ptr<const Router> router)
    : router_(std::move(router)), answers_(std::make_shared<Answers>()) {}

PredictQueue::~PredictQueue() {
  if (made_.still_here()) close();
}

int PredictQueue::fileno() const { return answers_->fileno(); }

void PredictQueue::submit(std::uint64_t token, const py::bytes& message, std::optional<double> timeout) {
  made_.check("queue");
  if (closed_) throw_status(FailedPrecondition("the queue is closed"));
  release_dropped_objects();
  if (pending_.contains(token)) throw_status(InvalidArgument("token " + std::to_string(token) + " is in use"));
  const Status status = queue(token, message, timeout);
  if (status.ok()) return;
  pending_[token] = {};
  answers_->refuse(token, status);
}

Status PredictQueue::queue(std::uint64_t token, const py::bytes& message, std::optional<double> timeout) {
  const std::string_view text(message);
  std::shared_ptr<const void> owner =
      std::make_shared<std::pair<std::shared_ptr<const void>, std::shared_ptr<Answers>>>(kept_object(message),
                                                                                         answers_);
  PredictRequestPtr request;
  Router::Route route;
  {
    std::optional<GilRelease> release;
    if (text.size() >= kLargeMessageBytes) release.emplace();
    if (Status status = decode(text, std::move(owner), &request, &route); !status.ok()) return status;
  }
  request->token = token;
  request->bytes = text.size();
  request->deadline_ns = deadline_in(timeout);
  request->sink = answers_.get();
  pending_[token] = {request, route.lane, route.model->shared_from_this()};
  Status status = route.lane->submit(request);
  if (!status.ok()) pending_.erase(token);
  return status;
}

// Stage 2.  Needs no GIL.
Status PredictQueue::decode(std::string_view message, std::shared_ptr<const void> owner, PredictRequestPtr* request,
                            Router::Route* route) const {
  Status status = PredictRequest::decode(std::as_bytes(std::span(message)), std::move(owner), request);
  if (status.ok()) status = router_->route((*request)->model_spec(), route);
  if (!status.ok()) return status;
  return (*request)->bind(route->lane->signature(), route->model_name, route->model->version(),
                          route->lane->options().slab_bytes_max);
}

void PredictQueue::cancel(std::uint64_t token) {
  made_.check("queue");
  const auto entry = pending_.find(token);
  if (entry == pending_.end() || entry->second.request == nullptr) return;
  const Pending pending = entry->second;
  GilRelease release;
  pending.lane->cancel(pending.request);
}

py::list PredictQueue::take() {
  made_.check("queue");
  py::list taken;
  for (const Answers::Answer& answer : answers_->take()) {
    pending_.erase(answer.token);
    const bool ok = answer.status.ok();
    const std::string_view response =
        ok ? std::string_view(static_cast<const PredictRequest&>(*answer.request).response()) : std::string_view();
    // Messages of models and clients need not be UTF-8.
    const std::string& message = answer.status.message();
    py::object text = py::reinterpret_steal<py::object>(
        PyUnicode_DecodeUTF8(message.data(), static_cast<Py_ssize_t>(message.size()), "replace"));
    taken.append(py::make_tuple(answer.token, static_cast<int>(answer.status.code()), text,
                                py::bytes(response.data(), response.size())));
  }
  release_dropped_objects();
  return taken;
}

void PredictQueue::close() {
  closed_ = true;
  std::vector<Pending> left;
  for (const auto& [token, pending] : pending_)
    if (pending.request != nullptr) left.push_back(pending);
  {
    GilRelease release;
    for (const Pending& pending : left) pending.lane->cancel(pending.request);
  }
  left.clear();
  pending_.clear();
  answers_->close();
  release_dropped_objects();
}

}  // namespace headrace
