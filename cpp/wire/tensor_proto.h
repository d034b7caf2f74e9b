// SPDX-License-Identifier: Apache-2.0
//
// TensorProto: tensorflow.TensorProto in both directions, with the rules of TensorFlow's Tensor::FromProto and
// Tensor::AsProtoField (tensorflow/core/framework/tensor.cc; the messages are in tensor.proto and tensor_shape.proto).
//
// Thread safety: none.
// Ownership: keeps views of the message; what has no place in the message goes into the memory resource it was given.
// Invariant: memory is taken only after the shape was found to fit the budget, so a short message cannot ask for much.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory_resource>
#include <string_view>
#include <vector>

#include "core/status.h"
#include "core/tensor.h"
#include "wire/proto.h"

namespace headrace {

// The most dimensions that TensorFlow's TensorShape can have.
inline constexpr std::size_t kRankMax = 254;

class TensorProto {
 public:
  // `memory` outlives the tensor and its views.
  explicit TensorProto(std::pmr::memory_resource* memory) : parts_(memory) {}

  // Reads a message, or merges one more of them as protobuf merges messages: scalars are replaced, lists go on.
  // False where it is malformed.  The message outlives the tensor and its views.
  [[nodiscard]] bool merge(std::string_view message);

  // The tensor: a view into the message where its bytes lie there (tensor_content, or one run of fixed-width values),
  // else unfolded into memory that `budget` is charged for.  The text of an error says what is wrong, not with which
  // tensor.  Takes the shape away, so it is called once.
  Status view(std::size_t* budget, TensorView* out);

 private:
  bool merge_shape(std::string_view message);
  void note_values(const Field& field);

  Status view_content(std::size_t elements, TensorView* out) const;
  Status view_numbers(std::size_t elements, std::size_t* budget, TensorView* out);
  Status view_strings(std::size_t elements, std::size_t* budget, TensorView* out);
  Status view_string_content(std::size_t elements, std::size_t* budget, TensorView* out) const;

  // Calls visit(field) for each field of that number until it returns false.
  template <typename Visit>
  void each_field(std::uint32_t number, Visit visit) const;

  // Room for `bytes` in the memory resource, or nullptr where the budget does not reach.
  std::byte* charge(std::size_t bytes, std::size_t* budget) const;

  std::pmr::vector<std::string_view> parts_;  // the messages merged so far
  Shape shape_;
  int dtype_ = 0;
  std::string_view content_;
  // The first field of values, and whether it is the only one: then it need not be looked for again.
  Field values_;
  bool more_values_ = false;
};

// How long the parts of an encoded tensor are, so that they are counted once.
struct TensorProtoSize {
  std::size_t shape = 0;   // TensorShapeProto
  std::size_t values = 0;  // the packed run, or all string_val fields with their tags
  std::size_t total = 0;   // TensorProto
};

// REQUIRES: the view is of a served dtype and its memory has all elements.
TensorProtoSize tensor_proto_size(const TensorView& tensor);

// Writes dtype, tensor_shape and the typed values, byte for byte what AsProtoField and protobuf make of them.
void write_tensor_proto(const TensorView& tensor, const TensorProtoSize& size, FieldWriter* writer);

}  // namespace headrace
