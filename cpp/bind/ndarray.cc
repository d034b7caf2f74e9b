// SPDX-License-Identifier: Apache-2.0

#include "bind/ndarray.h"

#include <array>
#include <cstring>
#include <limits>
#include <utility>

#include "bind/gil.h"
#include "bind/status_error.h"

namespace py = pybind11;

namespace headrace {
namespace {

// Below this the GIL costs more than the copy.
constexpr std::size_t kCopyWithoutGilBytes = 64 * 1024;

struct NumpyType {
  DType dtype;
  char kind;
  std::size_t bytes;
  const char* name;
};

// bfloat16 is no type of NumPy's own; it is told by its dtype object.
constexpr std::array<NumpyType, 15> kNumpyTypes = {{
    {DType::kFloat, 'f', 4, "float32"},
    {DType::kDouble, 'f', 8, "float64"},
    {DType::kHalf, 'f', 2, "float16"},
    {DType::kInt8, 'i', 1, "int8"},
    {DType::kInt16, 'i', 2, "int16"},
    {DType::kInt32, 'i', 4, "int32"},
    {DType::kInt64, 'i', 8, "int64"},
    {DType::kUint8, 'u', 1, "uint8"},
    {DType::kUint16, 'u', 2, "uint16"},
    {DType::kUint32, 'u', 4, "uint32"},
    {DType::kUint64, 'u', 8, "uint64"},
    {DType::kBool, 'b', 1, "bool"},
    {DType::kComplex64, 'c', 8, "complex64"},
    {DType::kComplex128, 'c', 16, "complex128"},
    {DType::kString, 'O', sizeof(PyObject*), "bytes"},
}};

constexpr std::size_t kDTypes = static_cast<std::size_t>(DType::kUint64) + 1;

// By DType's number; made with the module, bfloat16 when it is first asked for, and kept for ever.  Guarded by the GIL.
std::array<py::dtype, kDTypes>* numpy_dtypes = nullptr;

bool is_text(char kind) { return kind == 'O' || kind == 'S' || kind == 'U' || kind == 'T'; }

std::string dtype_text(const py::dtype& dtype) { return py::str(static_cast<const py::object&>(dtype)); }

[[noreturn]] void refuse(std::string_view what, const std::string& why) {
  throw_status(InvalidArgument(std::string(what) + ": " + why));
}

[[noreturn]] void refuse_dtype(std::string_view what, const std::string& got, DType expected) {
  if (expected == DType::kInvalid) refuse(what, "got " + got + ", which cannot be served");
  refuse(what, "got " + got + ", the signature wants " + std::string(numpy_name(expected)));
}

// Python's numbers widen along this order and never narrow.
int number_rank(char kind) {
  switch (kind) {
    case 'b':
      return 0;
    case 'u':
    case 'i':
      return 1;
    case 'f':
      return 2;
    case 'c':
      return 3;
    default:
      return -1;
  }
}

int number_rank(DType dtype) {
  if (dtype == DType::kBfloat16) return number_rank('f');
  for (const NumpyType& type : kNumpyTypes)
    if (type.dtype == dtype) return number_rank(type.kind);
  return -1;
}

// How many of the numbers a predicate of NumPy's holds for.
py::ssize_t count_of(const char* predicate, const py::array& numbers) {
  const py::module_ numpy = py::module_::import("numpy");
  return numpy.attr("count_nonzero")(numpy.attr(predicate)(numbers)).cast<py::ssize_t>();
}

// The numbers of `array` as `to`, of no lower rank.
py::array converted(const py::array& array, DType to, std::string_view what) {
  // It warns of floats that overflow, which are refused below.
  const py::object quietly = py::module_::import("numpy").attr("errstate")(py::arg("over") = "ignore");
  quietly.attr("__enter__")();
  py::array numbers = array.attr("astype")(numpy_dtype(to));
  quietly.attr("__exit__")(py::none(), py::none(), py::none());
  // NumPy lets integers wrap, version 1 also those of lists, and floats become infinite.
  if (const int rank = number_rank(to); rank == number_rank(dtype_of(array.dtype()))) {
    const bool fits = rank == number_rank('i') ? array.attr("__eq__")(numbers).attr("all")().cast<bool>()
                                               : count_of("isinf", array) == count_of("isinf", numbers);
    if (!fits) refuse(what, "holds a number out of range for " + std::string(numpy_name(to)));
  }
  return numbers;
}

// numpy.asarray, whose complaints (ragged lists, numbers out of range) are the caller's fault.
py::array as_array(py::handle value, const py::object& dtype, std::string_view what) {
  try {
    return py::module_::import("numpy").attr("asarray")(value, dtype);
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_ValueError) && !error.matches(PyExc_TypeError) && !error.matches(PyExc_OverflowError))
      throw;
    refuse(what, py::str(error.value()));
  }
}

// `value` as an array of `expected`, in whatever layout; strings as an object array.
py::array array_of(py::handle value, DType* expected, std::string_view what, Casting casting) {
  if (py::isinstance<py::array>(value)) {
    py::array array = py::reinterpret_borrow<py::array>(value);
    const DType dtype = dtype_of(array.dtype());
    if (dtype == DType::kInvalid || (*expected != DType::kInvalid && dtype != *expected)) {
      const int rank = number_rank(dtype);
      if (casting == Casting::kSameKind && rank >= 0 && rank <= number_rank(*expected))
        return converted(array, *expected, what);
      refuse_dtype(what, dtype_text(array.dtype()), *expected);
    }
    *expected = dtype;
    if (dtype == DType::kString && array.dtype().kind() != 'O') return as_array(array, numpy_dtype(dtype), what);
    return array;
  }
  // Text goes straight into an object array: NumPy's own would drop trailing NULs.
  if (*expected == DType::kString) return as_array(value, numpy_dtype(DType::kString), what);
  py::array array = as_array(value, py::none(), what);
  const DType dtype = dtype_of(array.dtype());
  if (*expected == DType::kInvalid) {
    if (dtype == DType::kInvalid) refuse_dtype(what, dtype_text(array.dtype()), *expected);
    *expected = dtype;
    return dtype == DType::kString ? as_array(value, numpy_dtype(dtype), what) : array;
  }
  const int rank = number_rank(dtype);
  if (array.size() != 0 && (rank < 0 || rank > number_rank(*expected)))
    refuse_dtype(what, dtype_text(array.dtype()), *expected);
  return converted(array, *expected, what);
}

Shape shape_of(const py::array& array) { return Shape(array.shape(), array.shape() + array.ndim()); }

bool is_native(const py::array& array) {
  const char order = array.dtype().byteorder();
  return order != '>' && order != '!';
}

// The characters of an element, which live as long as it does.
std::string_view characters_of(py::handle element, std::size_t index, std::string_view what) {
  if (PyBytes_Check(element.ptr()))
    return {PyBytes_AS_STRING(element.ptr()), static_cast<std::size_t>(PyBytes_GET_SIZE(element.ptr()))};
  if (PyUnicode_Check(element.ptr())) {
    Py_ssize_t size = 0;
    const char* data = PyUnicode_AsUTF8AndSize(element.ptr(), &size);
    if (data != nullptr) return {data, static_cast<std::size_t>(size)};
    PyErr_Clear();
    refuse(what, "element " + std::to_string(index) + " is a str that UTF-8 cannot encode");
  }
  refuse(what, "element " + std::to_string(index) + " is of type " + Py_TYPE(element.ptr())->tp_name +
                   ", expected bytes or str");
}

// The elements in row-major order; the list keeps them.
py::list elements_of(const py::array& array) { return array.attr("ravel")().attr("tolist")(); }

std::vector<std::string_view> strings_of(const py::list& elements, std::string_view what) {
  std::vector<std::string_view> strings;
  strings.reserve(elements.size());
  for (py::handle element : elements) strings.push_back(characters_of(element, strings.size(), what));
  return strings;
}

void copy_bytes(std::byte* to, const void* from, std::size_t bytes) {
  if (bytes < kCopyWithoutGilBytes) {
    if (bytes != 0) std::memcpy(to, from, bytes);
    return;
  }
  GilRelease release;
  std::memcpy(to, from, bytes);
}

py::array strings_to_array(const TensorView& view) {
  py::array array(numpy_dtype(DType::kString), view.shape);
  auto** items = static_cast<PyObject**>(array.mutable_data());
  for (py::ssize_t i = 0; i < array.size(); ++i) {
    PyObject* item = PyBytes_FromStringAndSize(view.strings[i].data(), static_cast<Py_ssize_t>(view.strings[i].size()));
    if (item == nullptr) throw py::error_already_set();
    Py_XDECREF(std::exchange(items[i], item));
  }
  return array;
}

}  // namespace

void prepare_arrays() {
  py::detail::npy_api::get();
  auto* const dtypes = new std::array<py::dtype, kDTypes>;
  for (const NumpyType& type : kNumpyTypes) {
    const std::string name = type.dtype == DType::kString ? "O" : type.name;
    (*dtypes)[static_cast<std::size_t>(type.dtype)] = py::dtype(name);
  }
  numpy_dtypes = dtypes;
}

py::dtype numpy_dtype(DType dtype) {
  py::dtype& known = (*numpy_dtypes)[static_cast<std::size_t>(dtype)];
  if (!known) {  // bfloat16: its package takes longer to import than all else that a server needs
    const CallsPython calls;
    known = py::dtype::from_args(py::module_::import("ml_dtypes").attr("bfloat16"));
  }
  return known;
}

std::string_view numpy_name(DType dtype) {
  if (dtype == DType::kBfloat16) return "bfloat16";
  for (const NumpyType& type : kNumpyTypes)
    if (type.dtype == dtype) return type.name;
  return "unknown";
}

DType dtype_of(const py::dtype& dtype) {
  const char kind = dtype.kind();
  const auto bytes = static_cast<std::size_t>(dtype.itemsize());
  // Types that packages add to NumPy are not to be told by their size: int4 is one byte, bfloat16 two.
  constexpr int kFirstAddedType = 256;
  if (dtype.num() >= kFirstAddedType && kind != 'T')
    return bytes == 2 && dtype.equal(numpy_dtype(DType::kBfloat16)) ? DType::kBfloat16 : DType::kInvalid;
  if (is_text(kind)) return DType::kString;
  for (const NumpyType& type : kNumpyTypes)
    if (type.kind == kind && type.bytes == bytes) return type.dtype;
  return DType::kInvalid;
}

ArrayCopy ArrayCopy::from(py::handle value, DType expected, std::string_view what, Casting casting) {
  const CallsPython calls;
  py::array array = array_of(value, &expected, what, casting);
  ArrayCopy copy;
  copy.view_.dtype = expected;
  copy.view_.shape = shape_of(array);
  if (expected == DType::kString) {
    const py::list elements = elements_of(array);
    copy.strings_ = strings_of(elements, what);
    std::size_t bytes = 0;
    for (std::string_view text : copy.strings_) bytes += text.size();
    copy.characters_ = std::make_unique_for_overwrite<char[]>(bytes);
    char* end = copy.characters_.get();
    for (std::string_view& text : copy.strings_) {
      if (!text.empty()) std::memcpy(end, text.data(), text.size());
      text = {end, text.size()};
      end += text.size();
    }
    // Never nullptr: that is how a view says that it holds numbers.
    if (copy.strings_.empty()) copy.strings_.reserve(1);
    copy.view_.strings = copy.strings_.data();
    return copy;
  }
  const auto bytes = static_cast<std::size_t>(array.nbytes());
  const std::size_t capacity = (bytes + kSlabAlignment) / kSlabAlignment * kSlabAlignment;
  copy.data_.reset(static_cast<std::byte*>(std::aligned_alloc(kSlabAlignment, capacity)));
  if (copy.data_ == nullptr) throw_status(ResourceExhausted(std::string(what) + ": out of memory"));
  copy.view_.data = copy.data_.get();
  copy.view_.bytes = bytes;
  if ((array.flags() & py::array::c_style) != 0 && is_native(array)) {
    copy_bytes(copy.data_.get(), array.data(), bytes);
  } else {
    // NumPy walks the strides and turns the bytes.  The base keeps it from making memory of its own.
    py::array target(numpy_dtype(expected), copy.view_.shape, copy.data_.get(), py::none());
    py::module_::import("numpy").attr("copyto")(target, array);
  }
  return copy;
}

BorrowedArray BorrowedArray::from(py::handle value, DType expected, std::string_view what, Casting casting) {
  const CallsPython calls;
  py::array array = array_of(value, &expected, what, casting);
  BorrowedArray borrowed;
  borrowed.view_.dtype = expected;
  borrowed.view_.shape = shape_of(array);
  if (expected == DType::kString) {
    py::list elements = elements_of(array);
    borrowed.strings_ = strings_of(elements, what);
    if (borrowed.strings_.empty()) borrowed.strings_.reserve(1);
    borrowed.view_.strings = borrowed.strings_.data();
    borrowed.keeper_ = std::move(elements);
    return borrowed;
  }
  if ((array.flags() & py::array::c_style) == 0 || !is_native(array)) {
    // Not ascontiguousarray, which makes a scalar a vector.
    array = py::module_::import("numpy").attr("array")(array, numpy_dtype(expected), py::arg("order") = "C");
  }
  borrowed.view_.data = static_cast<const std::byte*>(array.data());
  borrowed.view_.bytes = static_cast<std::size_t>(array.nbytes());
  borrowed.keeper_ = std::move(array);
  return borrowed;
}

py::array copy_to_array(const TensorView& view) {
  if (view.dtype == DType::kString) return strings_to_array(view);
  py::array array(numpy_dtype(view.dtype), view.shape);
  copy_bytes(static_cast<std::byte*>(array.mutable_data()), view.data, view.bytes);
  return array;
}

py::array view_of(const TensorView& view, std::shared_ptr<const void> owner) {
  if (view.dtype == DType::kString) return strings_to_array(view);
  auto keeper = std::make_unique<std::shared_ptr<const void>>(std::move(owner));
  py::capsule base(keeper.get(), [](void* held) { delete static_cast<std::shared_ptr<const void>*>(held); });
  keeper.release();
  return py::array(numpy_dtype(view.dtype), view.shape, view.data, base);
}

}  // namespace headrace
