// SPDX-License-Identifier: Apache-2.0

#include "bind/kept_object.h"

#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

#include "bind/gil.h"

namespace py = pybind11;

namespace headrace {
namespace {

// What was dropped without the GIL.
class Dropped {
 public:
  void add(PyObject* object) {
    std::lock_guard lock(mutex_);
    objects_.push_back(object);
    any_.store(true, std::memory_order_relaxed);  // under the mutex, as take()'s; a look that misses it comes again
  }

  std::vector<PyObject*> take() {
    std::vector<PyObject*> taken;
    if (!any_.load(std::memory_order_relaxed)) return taken;
    std::lock_guard lock(mutex_);
    any_.store(false, std::memory_order_relaxed);
    taken.swap(objects_);
    return taken;
  }

 private:
  std::atomic<bool> any_{false};
  std::mutex mutex_;
  std::vector<PyObject*> objects_;  // guarded by mutex_
};

// Never destroyed: executors may outlive the end of main().
Dropped& dropped() {
  static Dropped& objects = *new Dropped;
  return objects;
}

}  // namespace

std::shared_ptr<const void> kept_object(py::object object) {
  return {object.release().ptr(),
          [](const void* kept) { dropped().add(static_cast<PyObject*>(const_cast<void*>(kept))); }};
}

py::object object_kept_by(const std::shared_ptr<const void>& kept) {
  return py::reinterpret_borrow<py::object>(static_cast<PyObject*>(const_cast<void*>(kept.get())));
}

void release_dropped_objects() {
  const std::vector<PyObject*> objects = dropped().take();
  if (objects.empty()) return;
  const CallsPython calls;
  for (PyObject* object : objects) Py_DECREF(object);
}

}  // namespace headrace
