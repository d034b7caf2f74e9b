// SPDX-License-Identifier: Apache-2.0

#include "wire/tensor_proto.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "wire/value_field.h"

namespace headrace {
namespace {

constexpr std::uint32_t kDtypeTag = make_tag(1, WireType::kVarint);
constexpr std::uint32_t kShapeNumber = 2;
constexpr std::uint32_t kShapeTag = make_tag(kShapeNumber, WireType::kBytes);
constexpr std::uint32_t kContentTag = make_tag(4, WireType::kBytes);

constexpr std::uint32_t kDimNumber = 2;  // of TensorShapeProto
constexpr std::uint32_t kDimTag = make_tag(kDimNumber, WireType::kBytes);
constexpr std::uint32_t kDimSizeTag = make_tag(1, WireType::kVarint);
constexpr std::uint32_t kDimNameTag = make_tag(2, WireType::kBytes);

bool is_value_field(const Field& field) {
  const std::uint32_t number = field.number();
  return number == kStringVal ? field.type() == WireType::kBytes
                              : value_type(number) != WireType::kBytes &&
                                    (field.type() == WireType::kBytes || field.type() == value_type(number));
}

// A packed run of fixed-width values that is no whole number of them makes the message malformed.
bool run_is_whole(const Field& field) {
  switch (value_type(field.number())) {
    case WireType::kFixed32:
      return field.bytes.size() % 4 == 0;
    case WireType::kFixed64:
      return field.bytes.size() % 8 == 0;
    default:
      return true;
  }
}

// One element of a varint field, cut to its width as C++ does.
template <typename T>
T element_of(std::uint64_t value) {
  return static_cast<T>(value);
}
template <>
bool element_of<bool>(std::uint64_t value) {
  return value != 0;
}

// The varint of the element at `data`: signed types as the sign-extended 64 bits, all others as they are.
template <typename T>
std::uint64_t varint_at(const std::byte* data) {
  T element;
  std::memcpy(&element, data, sizeof element);
  return static_cast<std::uint64_t>(element);
}
template <>
std::uint64_t varint_at<bool>(const std::byte* data) {  // a model may leave any byte in a bool
  return *data != std::byte{0};
}

// Reads varints into out[*count, elements); false where one is malformed.
template <typename T>
bool unpack_varints(std::string_view run, std::size_t elements, T* out, std::size_t* count) {
  const char* position = run.data();
  const char* const end = position + run.size();
  std::size_t i = *count;
  while (position < end) {
    std::uint64_t value;
    if (!read_varint(&position, end, &value)) return false;
    if (i < elements) out[i++] = element_of<T>(value);
  }
  *count = i;
  return true;
}

const std::byte* as_bytes(std::string_view text) { return reinterpret_cast<const std::byte*>(text.data()); }

std::string tensor_text(const TensorView& tensor) {
  return std::string(dtype_name(tensor.dtype)) + shape_text(tensor.shape);
}

Status over_budget(const TensorView& tensor, std::size_t budget) {
  return InvalidArgument(tensor_text(tensor) + " takes more than the " + std::to_string(budget) +
                         " bytes left of what the values of one request may unfold to; send fewer");
}

Status bad_content(const TensorView& tensor, std::size_t bytes) {
  return InvalidArgument("tensor_content of " + std::to_string(bytes) + " bytes is not a " + tensor_text(tensor));
}

// What a string tensor without elements points at.
constexpr std::string_view kNoStrings[1];

}  // namespace

bool TensorProto::merge(std::string_view message) {
  FieldReader reader(message);
  for (Field field; reader.next(&field);) {
    switch (field.tag) {
      case kDtypeTag:
        dtype_ = static_cast<int>(field.varint);
        break;
      case kShapeTag:
        if (!merge_shape(field.bytes)) return false;
        break;
      case kContentTag:
        content_ = field.bytes;
        break;
      default:
        if (!is_value_field(field)) break;
        if (!run_is_whole(field)) return false;
        note_values(field);
        break;
    }
  }
  parts_.push_back(message);
  return reader.ok();
}

bool TensorProto::merge_shape(std::string_view message) {
  FieldReader shape(message);
  for (Field field; shape.next(&field);) {
    if (field.tag != kDimTag) continue;  // a TensorShape ignores unknown_rank, too
    std::int64_t size = 0;
    FieldReader dim(field.bytes);
    for (Field part; dim.next(&part);) {
      if (part.tag == kDimSizeTag) size = static_cast<std::int64_t>(part.varint);
      if (part.tag == kDimNameTag && !is_utf8(part.bytes)) return false;
    }
    if (!dim.ok()) return false;
    if (shape_.capacity() == 0) shape_.reserve(4);          // one allocation for most
    if (shape_.size() <= kRankMax) shape_.push_back(size);  // one too many is enough to refuse it
  }
  return shape.ok();
}

void TensorProto::note_values(const Field& field) {
  if (values_.tag == 0)
    values_ = field;
  else
    more_values_ = true;
}

template <typename Visit>
void TensorProto::each_field(std::uint32_t number, Visit visit) const {
  if (!more_values_) {
    if (values_.number() == number) visit(values_);
    return;
  }
  for (std::string_view part : parts_) {
    FieldReader reader(part);
    for (Field field; reader.next(&field);)
      if (field.number() == number && is_value_field(field) && !visit(field)) return;
  }
}

std::byte* TensorProto::charge(std::size_t bytes, std::size_t* budget) const {
  if (bytes > *budget) return nullptr;
  *budget -= bytes;
  return static_cast<std::byte*>(parts_.get_allocator().resource()->allocate(bytes));
}

Status TensorProto::view(std::size_t* budget, TensorView* out) {
  out->dtype = static_cast<DType>(dtype_);
  if (!dtype_is_served(out->dtype)) return InvalidArgument("dtype " + std::to_string(dtype_) + " is not served");
  if (shape_.size() > kRankMax) return InvalidArgument("more than " + std::to_string(kRankMax) + " dimensions");
  out->shape = std::move(shape_);
  const std::int64_t elements = out->elements();
  if (elements < 0) return InvalidArgument("shape " + shape_text(out->shape) + " is negative or too large");
  const bool strings = out->dtype == DType::kString;
  if (elements == 0) {  // whatever the values are
    out->data = strings ? nullptr : as_bytes(parts_.front());
    out->strings = strings ? kNoStrings : nullptr;
    return {};
  }
  const auto n = static_cast<std::size_t>(elements);
  if (content_.empty()) return strings ? view_strings(n, budget, out) : view_numbers(n, budget, out);
  return strings ? view_string_content(n, budget, out) : view_content(n, out);
}

Status TensorProto::view_content(std::size_t elements, TensorView* out) const {
  const std::size_t element_bytes = dtype_bytes(out->dtype);
  if (content_.size() % element_bytes != 0 || content_.size() / element_bytes != elements)
    return bad_content(*out, content_.size());
  // TensorFlow refuses such a bool, too: no kernel is made for it.
  if (out->dtype == DType::kBool && std::any_of(content_.begin(), content_.end(), [](char c) { return (c & ~1) != 0; }))
    return InvalidArgument("tensor_content of a bool holds bytes other than 0 and 1");
  out->data = as_bytes(content_);
  out->bytes = content_.size();
  return {};
}

// The values of the list, from the first on; a list that is too short goes on with its last value, an empty one with
// zeros, and what is too much is left out.
Status TensorProto::view_numbers(std::size_t elements, std::size_t* budget, TensorView* out) {
  const std::size_t element_bytes = dtype_bytes(out->dtype);
  std::size_t bytes;
  if (__builtin_mul_overflow(elements, element_bytes, &bytes)) return over_budget(*out, *budget);
  out->bytes = bytes;

  const std::uint32_t number = value_number(out->dtype);
  const bool fixed = value_type(number) != WireType::kVarint;
  if (fixed && !more_values_ && values_.number() == number && values_.bytes.size() >= bytes) {
    out->data = as_bytes(values_.bytes);
    return {};
  }

  std::byte* const data = charge(bytes, budget);
  if (data == nullptr) return over_budget(*out, *budget);
  out->data = data;

  std::size_t count = 0;  // elements filled
  bool ok = true;
  if (fixed) {
    std::size_t filled = 0;
    each_field(number, [&](const Field& field) {
      const std::size_t part = std::min(field.bytes.size(), bytes - filled);
      if (part != 0) std::memcpy(data + filled, field.bytes.data(), part);
      filled += part;
      return filled < bytes;
    });
    count = filled / element_bytes;  // half a complex number does not count
  } else {
    with_element_type(out->dtype, [&](auto element) {
      using T = decltype(element);
      T* const values = reinterpret_cast<T*>(data);  // the resource aligns for every type
      each_field(number, [&](const Field& field) {
        if (field.type() == WireType::kBytes) {
          ok = unpack_varints(field.bytes, elements, values, &count);
        } else if (count < elements) {
          values[count++] = element_of<T>(field.varint);
        }
        return ok;
      });
    });
  }
  if (!ok) return InvalidArgument("malformed packed values");
  if (count == 0) {
    std::memset(data, 0, bytes);
    return {};
  }
  for (std::size_t filled = count * element_bytes; filled < bytes;) {  // doubles the repeated part at each step
    const std::size_t last = (count - 1) * element_bytes;
    const std::size_t part = std::min(filled - last, bytes - filled);
    std::memcpy(data + filled, data + last, part);
    filled += part;
  }
  return {};
}

// As view_numbers().  A repeated string is charged for each time, since whoever copies the tensor pays for each.
Status TensorProto::view_strings(std::size_t elements, std::size_t* budget, TensorView* out) {
  std::size_t bytes;
  if (__builtin_mul_overflow(elements, sizeof(std::string_view), &bytes)) return over_budget(*out, *budget);
  auto* const strings = reinterpret_cast<std::string_view*>(charge(bytes, budget));
  if (strings == nullptr) return over_budget(*out, *budget);
  std::size_t count = 0;
  each_field(kStringVal, [&](const Field& field) {
    strings[count++] = field.bytes;
    return count < elements;
  });
  const std::string_view last = count == 0 ? std::string_view() : strings[count - 1];
  std::size_t repeated_bytes;
  if (__builtin_mul_overflow(elements - count, last.size(), &repeated_bytes) || repeated_bytes > *budget)
    return over_budget(*out, *budget);
  *budget -= repeated_bytes;
  std::fill(strings + count, strings + elements, last);
  out->strings = strings;
  return {};
}

// All lengths as varints, then all bytes (EncodeStringList in tensorflow/core/platform/tensor_coding.cc).
Status TensorProto::view_string_content(std::size_t elements, std::size_t* budget, TensorView* out) const {
  constexpr std::ptrdiff_t kLengthBytesMax = 5;
  if (elements > content_.size()) return bad_content(*out, content_.size());
  auto* const strings = reinterpret_cast<std::string_view*>(charge(elements * sizeof(std::string_view), budget));
  if (strings == nullptr) return over_budget(*out, *budget);
  const char* position = content_.data();
  const char* const end = position + content_.size();
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < elements; ++i) {
    const char* const begin = position;
    std::uint64_t length;
    if (!read_varint(&position, end, &length) || position - begin > kLengthBytesMax)
      return bad_content(*out, content_.size());
    length &= 0xFFFFFFFF;
    sum += length;
    strings[i] = {content_.data(), static_cast<std::size_t>(length)};
  }
  if (sum != static_cast<std::uint64_t>(end - position)) return bad_content(*out, content_.size());
  for (std::size_t i = 0; i < elements; ++i) {
    strings[i] = {position, strings[i].size()};
    position += strings[i].size();
  }
  out->strings = strings;
  return {};
}

namespace {

std::size_t dim_bytes(std::int64_t size) {
  return size == 0 ? 0 : varint_field_bytes(1, static_cast<std::uint64_t>(size));
}

std::size_t values_bytes(const TensorView& tensor) {
  const auto elements = static_cast<std::size_t>(tensor.elements());
  std::size_t bytes = 0;
  if (tensor.dtype == DType::kString) {
    for (std::size_t i = 0; i < elements; ++i) bytes += bytes_field_bytes(kStringVal, tensor.strings[i].size());
    return bytes;
  }
  if (value_type(value_number(tensor.dtype)) != WireType::kVarint) return tensor.bytes;
  with_element_type(tensor.dtype, [&](auto element) {
    using T = decltype(element);
    for (std::size_t i = 0; i < elements; ++i) bytes += varint_bytes(varint_at<T>(tensor.data + i * sizeof(T)));
  });
  return bytes;
}

}  // namespace

TensorProtoSize tensor_proto_size(const TensorView& tensor) {
  TensorProtoSize size;
  for (std::int64_t dim : tensor.shape) size.shape += bytes_field_bytes(kDimNumber, dim_bytes(dim));
  size.values = values_bytes(tensor);
  size.total =
      varint_field_bytes(1, static_cast<std::uint64_t>(tensor.dtype)) + bytes_field_bytes(kShapeNumber, size.shape);
  if (tensor.dtype == DType::kString)
    size.total += size.values;
  else if (size.values != 0)
    size.total += bytes_field_bytes(value_number(tensor.dtype), size.values);
  return size;
}

void write_tensor_proto(const TensorView& tensor, const TensorProtoSize& size, FieldWriter* writer) {
  writer->write_varint_field(1, static_cast<std::uint64_t>(tensor.dtype));
  writer->open_bytes_field(kShapeNumber, size.shape);
  for (std::int64_t dim : tensor.shape) {
    writer->open_bytes_field(kDimNumber, dim_bytes(dim));
    if (dim != 0) writer->write_varint_field(1, static_cast<std::uint64_t>(dim));
  }
  const auto elements = static_cast<std::size_t>(tensor.elements());
  if (tensor.dtype == DType::kString) {
    for (std::size_t i = 0; i < elements; ++i) writer->write_bytes_field(kStringVal, tensor.strings[i]);
    return;
  }
  if (elements == 0) return;
  const std::uint32_t number = value_number(tensor.dtype);
  writer->open_bytes_field(number, size.values);
  if (value_type(number) != WireType::kVarint) {
    writer->write_raw(tensor.data, tensor.bytes);
    return;
  }
  with_element_type(tensor.dtype, [&](auto element) {
    using T = decltype(element);
    writer->write_varints(elements, [&](std::size_t i) { return varint_at<T>(tensor.data + i * sizeof(T)); });
  });
}

}  // namespace headrace
