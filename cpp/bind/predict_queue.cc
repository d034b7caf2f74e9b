// SPDX-License-Identifier: Apache-2.0
//
// Stages 2, 3 and 8 of 8 for a transport in Python: decode and enqueue; hand back a whole batch with one wake-up.

#include "bind/predict_queue.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "bind/gil.h"
#include "bind/seconds.h"
#include "bind/status_error.h"

namespace py = pybind11;

namespace headrace {
namespace {

// From here on decoding takes so long that other Python threads should run meanwhile.
constexpr std::size_t kLargeMessageBytes = 64 << 10;

}  // namespace

// The answers that wait to be taken, and the message objects that wait for somebody with the GIL to let go of them.
class PredictQueue::Answers final : public ReplySink {
 public:
  struct Answer {
    std::uint64_t token = 0;
    Status status;
    RequestPtr request;  // null where the message was refused
  };

  Answers() : fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    if (fd_ < 0) throw_status(ResourceExhausted(std::string("no file descriptor for answers: ") + strerror(errno)));
  }
  ~Answers() override { ::close(fd_); }

  int fileno() const { return fd_; }

  void deliver(std::span<const RequestPtr> answered) noexcept override {
    std::lock_guard lock(mutex_);
    if (closed_) return;
    for (const RequestPtr& request : answered) waiting_.push_back({request->token, request->status, request});
    signal();
  }

  void refuse(std::uint64_t token, Status status) {
    std::lock_guard lock(mutex_);
    waiting_.push_back({token, std::move(status), nullptr});
    signal();
  }

  std::vector<Answer> take() {
    std::vector<Answer> taken;
    std::lock_guard lock(mutex_);
    taken.swap(waiting_);
    signalled_ = false;
    std::uint64_t count = 0;
    [[maybe_unused]] const ssize_t cleared = ::read(fd_, &count, sizeof count);  // EAGAIN where it is clear already
    return taken;
  }

  // Nobody takes answers any more; those that nobody took are let go of.  They keep their messages, and those this.
  void close() {
    std::vector<Answer> left;
    std::lock_guard lock(mutex_);
    closed_ = true;
    left.swap(waiting_);
  }

  // The object is let go of by the next release_messages().  From any thread, without the GIL.
  void message_done(PyObject* message) {
    std::lock_guard lock(mutex_);
    done_messages_.push_back(message);
  }

  // REQUIRES: the GIL.
  void release_messages() {
    std::vector<PyObject*> done;
    {
      std::lock_guard lock(mutex_);
      done.swap(done_messages_);
    }
    for (PyObject* message : done) Py_DECREF(message);
  }

 private:
  // REQUIRES: mutex_ held.
  void signal() {
    if (std::exchange(signalled_, true)) return;
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(fd_, &one, sizeof one);  // cannot overflow: it is 0 before
  }

  const int fd_;
  std::mutex mutex_;
  std::vector<Answer> waiting_;           // guarded by mutex_
  std::vector<PyObject*> done_messages_;  // guarded by mutex_
  bool signalled_ = false;                // guarded by mutex_; whether fd_ is readable
  bool closed_ = false;                   // guarded by mutex_
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
  answers_->release_messages();
  if (pending_.contains(token)) throw_status(InvalidArgument("token " + std::to_string(token) + " is in use"));
  const Status status = queue(token, message, timeout);
  if (status.ok()) return;
  pending_[token] = {};
  answers_->refuse(token, status);
}

Status PredictQueue::queue(std::uint64_t token, const py::bytes& message, std::optional<double> timeout) {
  const std::string_view text(message);
  std::shared_ptr<const void> owner(message.inc_ref().ptr(), [answers = answers_](const void* object) {
    answers->message_done(static_cast<PyObject*>(const_cast<void*>(object)));
  });
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
  return (*request)->bind(route->lane->signature(), route->model->name(), route->model->version(),
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
  answers_->release_messages();
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
  answers_->release_messages();
}

}  // namespace headrace
