// SPDX-License-Identifier: Apache-2.0

#include "bind/slot.h"

#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>

#include "bind/ndarray.h"
#include "bind/status_error.h"

namespace py = pybind11;

namespace headrace {
namespace {

std::string quoted(const TensorSpec& spec) { return "input \"" + spec.name + "\""; }

// What the dictionary says of that input; null if nothing.
py::object entry(const std::optional<py::dict>& dictionary, const TensorSpec& spec) {
  const py::str name(spec.name);
  if (!dictionary || !dictionary->contains(name)) return {};
  return (*dictionary)[name];
}

void check_known(const Signature& signature, const std::optional<py::dict>& dictionary) {
  if (!dictionary) return;
  for (const auto& [name, value] : *dictionary) {
    const auto text = py::cast<std::string>(py::str(name));
    if (signature.input_index(text) < 0) throw_status(InvalidArgument("there is no input \"" + text + "\""));
  }
}

DType dtype_wanted(const TensorSpec& spec, const py::object& given) {
  DType dtype = spec.dtype;
  if (given) {
    const DType wanted = dtype_of(py::dtype::from_args(given));
    if (wanted == DType::kInvalid || (dtype != DType::kInvalid && wanted != dtype)) {
      throw_status(InvalidArgument(quoted(spec) + ": dtypes has " + std::string(numpy_name(wanted)) +
                                   ", the signature wants " + std::string(numpy_name(dtype))));
    }
    dtype = wanted;
  }
  if (dtype == DType::kInvalid)
    throw_status(InvalidArgument(quoted(spec) + ": the signature leaves its dtype open; give it in dtypes"));
  if (dtype == DType::kString)
    throw_status(InvalidArgument(quoted(spec) + ": strings have no buffer of a fixed size; use submit()"));
  return dtype;
}

// With the batch dimension.
Shape shape_wanted(const TensorSpec& spec, std::int64_t rows, const py::object& given) {
  if (spec.shape && spec.shape->empty())
    throw_status(InvalidArgument(quoted(spec) + " is a scalar and has no rows; use submit()"));
  Shape shape{rows};
  if (!given) {
    if (spec.shape) shape.insert(shape.end(), spec.shape->begin() + 1, spec.shape->end());
    if (!spec.shape || std::any_of(shape.begin(), shape.end(), [](std::int64_t dim) { return dim < 0; })) {
      throw_status(InvalidArgument(quoted(spec) + ": the signature leaves the shape of a row open (" +
                                   (spec.shape ? shape_text(*spec.shape) : "rank unknown") + "); give it in shapes"));
    }
    return shape;
  }
  for (py::handle dim : given) shape.push_back(py::cast<std::int64_t>(dim));
  const auto agrees = [](std::int64_t got, std::int64_t wanted) { return wanted < 0 || got == wanted; };
  if (std::any_of(shape.begin(), shape.end(), [](std::int64_t dim) { return dim < 0; }) ||
      (spec.shape && !std::equal(shape.begin() + 1, shape.end(), spec.shape->begin() + 1, spec.shape->end(), agrees))) {
    throw_status(InvalidArgument(
        quoted(spec) + ": shapes has " + shape_text({shape.begin() + 1, shape.end()}) +
        " for a row, the signature wants " +
        (spec.shape ? shape_text({spec.shape->begin() + 1, spec.shape->end()}) : "no negative dimension")));
  }
  return shape;
}

}  // namespace

ReservedSlot ReservedSlot::reserve(const LaneHandle& lane, std::int64_t rows, const std::optional<py::dict>& shapes,
                                   const std::optional<py::dict>& dtypes) {
  const Signature& signature = lane.get().signature();
  const LaneOptions& options = lane.get().options();
  check_known(signature, shapes);
  check_known(signature, dtypes);
  if (rows < 1 || rows > options.policy.max_batch_size) {
    throw_status(InvalidArgument("rows is " + std::to_string(rows) + "; it must be 1 to " +
                                 std::to_string(options.policy.max_batch_size) + " (max_batch_size)"));
  }
  ReservedSlot slot;
  slot.lane_ = lane;
  std::size_t total = 0;
  for (const TensorSpec& spec : signature.inputs) {
    TensorView& view = slot.views_.emplace_back();
    const py::object shape = entry(shapes, spec);
    const py::object dtype = entry(dtypes, spec);
    if (spec.optional && !shape && !dtype) continue;
    view.dtype = dtype_wanted(spec, dtype);
    view.shape = shape_wanted(spec, rows, shape);
    const std::int64_t elements = view.elements();
    if (elements < 0 || static_cast<std::size_t>(elements) > options.slab_bytes_max / dtype_bytes(view.dtype) ||
        total + static_cast<std::size_t>(elements) * dtype_bytes(view.dtype) > options.slab_bytes_max) {
      throw_status(InvalidArgument("the rows have more than the " + std::to_string(options.slab_bytes_max) +
                                   " bytes that the largest batch may have (slab_bytes_max)"));
    }
    view.bytes = static_cast<std::size_t>(elements) * dtype_bytes(view.dtype);
    total += (view.bytes / kSlabAlignment + 1) * kSlabAlignment;
  }
  slot.buffer_ = {static_cast<std::byte*>(std::aligned_alloc(kSlabAlignment, std::max(total, kSlabAlignment))),
                  std::free};
  if (slot.buffer_ == nullptr)
    throw_status(ResourceExhausted("no memory for " + std::to_string(total) + " bytes of rows"));
  std::byte* at = slot.buffer_.get();
  for (std::size_t i = 0; i < slot.views_.size(); ++i) {
    TensorView& view = slot.views_[i];
    if (view.is_absent()) continue;
    view.data = at;
    at += (view.bytes / kSlabAlignment + 1) * kSlabAlignment;
    slot.arrays_[py::str(signature.inputs[i].name)] = view_of(view, slot.buffer_);
  }
  return slot;
}

Reply ReservedSlot::submit(std::optional<double> timeout) {
  if (std::exchange(submitted_, true)) throw_status(FailedPrecondition("the slot was submitted already"));
  for (const auto& [name, array] : arrays_) array.attr("setflags")(py::arg("write") = false);
  return submit_request(lane_, new ArrayRequest(views_, buffer_), timeout);
}

}  // namespace headrace
