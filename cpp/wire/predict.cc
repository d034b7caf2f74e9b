// SPDX-License-Identifier: Apache-2.0
//
// Stage 2 of 8: decode the message of a request and bind it to its signature.
// Stage 7 of 8: encode the outputs of a request as its reply.

#include "wire/predict.h"

#include <algorithm>
#include <cassert>
#include <iterator>
#include <new>
#include <set>
#include <utility>

#include "wire/proto.h"
#include "wire/tensor_proto.h"

namespace headrace {
namespace {

// tensorflow_serving/apis/predict.proto
constexpr std::uint32_t kRequestModelSpecTag = make_tag(1, WireType::kBytes);
constexpr std::uint32_t kRequestInputsTag = make_tag(2, WireType::kBytes);
constexpr std::uint32_t kRequestOutputFilterTag = make_tag(3, WireType::kBytes);
constexpr std::uint32_t kResponseOutputs = 1;
constexpr std::uint32_t kResponseModelSpec = 2;

// The message that stands for a map entry.
constexpr std::uint32_t kEntryKey = 1;
constexpr std::uint32_t kEntryValue = 2;
constexpr std::uint32_t kEntryKeyTag = make_tag(kEntryKey, WireType::kBytes);
constexpr std::uint32_t kEntryValueTag = make_tag(kEntryValue, WireType::kBytes);

// tensorflow_serving/apis/model.proto
constexpr std::uint32_t kSpecName = 1;
constexpr std::uint32_t kSpecVersion = 2;
constexpr std::uint32_t kSpecSignatureName = 3;
constexpr std::uint32_t kSpecVersionLabel = 4;
constexpr std::uint32_t kSpecNameTag = make_tag(kSpecName, WireType::kBytes);
constexpr std::uint32_t kSpecVersionTag = make_tag(kSpecVersion, WireType::kBytes);
constexpr std::uint32_t kSpecSignatureNameTag = make_tag(kSpecSignatureName, WireType::kBytes);
constexpr std::uint32_t kSpecVersionLabelTag = make_tag(kSpecVersionLabel, WireType::kBytes);

// google.protobuf.Int64Value
constexpr std::uint32_t kInt64Value = 1;
constexpr std::uint32_t kInt64ValueTag = make_tag(kInt64Value, WireType::kVarint);

Status malformed(std::string_view part) {
  return InvalidArgument("malformed PredictRequest: " + std::string(part) +
                         " is not what protobuf's wire format and UTF-8 allow");
}

Status out_of_memory() { return ResourceExhausted("no memory left for this request"); }

// As TF Serving has them: sorted, with commas.
using Names = std::set<std::string_view>;

std::string text_of(const Names& names) {
  std::string text = "{";
  for (std::string_view name : names) {
    if (text.size() > 1) text += ',';
    text += name;
  }
  return text + "}";
}

Names without(const Names& names, const Names& others) {
  Names rest;
  std::set_difference(names.begin(), names.end(), others.begin(), others.end(), std::inserter(rest, rest.end()));
  return rest;
}

std::size_t optional_bytes_field_bytes(std::uint32_t number, std::string_view bytes) {
  return bytes.empty() ? 0 : bytes_field_bytes(number, bytes.size());
}

// Each entry costs far more memory than the two bytes that it can have in a message.
Status too_many_entries() {
  return InvalidArgument("the message has more than " + std::to_string(PredictRequest::kEntriesMax) +
                         " inputs, values of inputs and output filters; send fewer");
}

}  // namespace

struct PredictRequest::Input {
  std::string_view name;
  std::size_t position;  // in the message
  TensorProto tensor;
};

PredictRequest::PredictRequest() : inputs_(&arena_) {}
PredictRequest::~PredictRequest() = default;

Status PredictRequest::decode(std::span<const std::byte> message, std::shared_ptr<const void> owner,
                              PredictRequestPtr* out) {
  try {
    PredictRequestPtr request(new PredictRequest);
    request->owner_ = std::move(owner);
    Status parsed = request->parse({reinterpret_cast<const char*>(message.data()), message.size()});
    if (parsed.ok()) *out = std::move(request);
    return parsed;
  } catch (const std::bad_alloc&) {
    return out_of_memory();
  }
}

Status PredictRequest::parse(std::string_view message) {
  FieldReader reader(message);
  for (Field field; reader.next(&field);) {
    switch (field.tag) {
      case kRequestModelSpecTag:
        if (!parse_model_spec(field.bytes)) return malformed("model_spec");
        break;
      case kRequestInputsTag:
        if (Status parsed = parse_input(field.bytes); !parsed.ok()) return parsed;
        break;
      case kRequestOutputFilterTag:
        if (++entries_ > kEntriesMax) return too_many_entries();
        if (!is_utf8(field.bytes)) return malformed("output_filter");
        output_filter_.push_back(field.bytes);
        break;
      default:
        break;
    }
  }
  if (!reader.ok()) return malformed("the message");
  drop_replaced_inputs();
  return {};
}

// Given more than once, a model_spec is merged, as is the version in it.
bool PredictRequest::parse_model_spec(std::string_view message) {
  model_spec_.present = true;
  FieldReader reader(message);
  for (Field field; reader.next(&field);) {
    switch (field.tag) {
      case kSpecNameTag:
        model_spec_.name = field.bytes;
        break;
      case kSpecSignatureNameTag:
        model_spec_.signature_name = field.bytes;
        break;
      case kSpecVersionTag:
        model_spec_.version_label.reset();
        if (!parse_version(field.bytes)) return false;
        continue;
      case kSpecVersionLabelTag:
        model_spec_.version.reset();
        model_spec_.version_label = field.bytes;
        break;
      default:
        continue;
    }
    if (!is_utf8(field.bytes)) return false;
  }
  return reader.ok();
}

bool PredictRequest::parse_version(std::string_view int64_value) {
  if (!model_spec_.version.has_value()) model_spec_.version = 0;
  FieldReader reader(int64_value);
  for (Field field; reader.next(&field);)
    if (field.tag == kInt64ValueTag) model_spec_.version = static_cast<std::int64_t>(field.varint);
  return reader.ok();
}

Status PredictRequest::parse_input(std::string_view entry) {
  if (++entries_ > kEntriesMax) return too_many_entries();
  if (inputs_.empty()) inputs_.reserve(2);
  Input& input = inputs_.emplace_back(Input{{}, inputs_.size(), TensorProto(&arena_)});
  FieldReader reader(entry);
  for (Field field; reader.next(&field);) {
    if (field.tag == kEntryKeyTag) {
      if (!is_utf8(field.bytes)) return malformed("the name of an input");
      input.name = field.bytes;
    } else if (field.tag == kEntryValueTag) {
      if (++entries_ > kEntriesMax) return too_many_entries();
      if (!input.tensor.merge(field.bytes)) return malformed("input " + std::string(input.name));
    }
  }
  return reader.ok() ? Status() : malformed("inputs");
}

// Of entries with the same name the last one counts.
void PredictRequest::drop_replaced_inputs() {
  if (inputs_.size() < 2) return;
  std::sort(inputs_.begin(), inputs_.end(), [](const Input& a, const Input& b) {
    const int order = a.name.compare(b.name);
    return order != 0 ? order < 0 : a.position > b.position;
  });
  inputs_.erase(std::unique(inputs_.begin(), inputs_.end(),
                            [](const Input& last, const Input& earlier) { return last.name == earlier.name; }),
                inputs_.end());
}

PredictRequest::Input* PredictRequest::find_input(std::string_view name) {
  const auto found = std::lower_bound(inputs_.begin(), inputs_.end(), name,
                                      [](const Input& input, std::string_view wanted) { return input.name < wanted; });
  return found != inputs_.end() && found->name == name ? &*found : nullptr;
}

Status PredictRequest::bind(const Signature& signature, std::string_view model_name, std::int64_t version,
                            std::size_t unfolded_bytes_max) {
  try {
    signature_ = &signature;
    version_ = version;
    auto* const name = static_cast<char*>(arena_.allocate(model_name.size() + 1, 1));
    model_name.copy(name, model_name.size());
    model_name_ = {name, model_name.size()};
    Status bound = bind_inputs(unfolded_bytes_max);
    if (bound.ok() && !outputs_are_open()) bound = bind_outputs();
    if (bound.ok()) bound = check_dtypes();
    return bound;
  } catch (const std::bad_alloc&) {
    return out_of_memory();
  }
}

// VerifyRequestInputsSize in tensorflow_serving/servables/tensorflow/predict_util.cc, then GetInputValues in
// tensorflow/cc/saved_model/util.cc.
Status PredictRequest::bind_inputs(std::size_t unfolded_bytes_max) {
  const std::vector<TensorSpec>& specs = signature_->inputs;
  const auto sent_names = [this] {
    Names names;
    for (const Input& input : inputs_) names.insert(names.end(), input.name);
    return names;
  };
  const auto left_out = std::count_if(specs.begin(), specs.end(), [this](const TensorSpec& spec) {
    return spec.optional && find_input(spec.name) == nullptr;
  });
  if (inputs_.size() + static_cast<std::size_t>(left_out) != specs.size()) {
    const Names sent = sent_names();
    Names wanted;
    for (const TensorSpec& spec : specs)
      if (!spec.optional || sent.contains(spec.name)) wanted.insert(spec.name);
    return InvalidArgument("input size does not match signature: " + std::to_string(sent.size()) +
                           "!=" + std::to_string(wanted.size()) + " len(" + text_of(sent) + ") != len(" +
                           text_of(wanted) + "). Sent extra: " + text_of(without(sent, wanted)) +
                           ". Missing but required: " + text_of(without(wanted, sent)) + ".");
  }
  std::size_t budget = unfolded_bytes_max;
  inputs.reserve(specs.size());
  for (const TensorSpec& spec : specs) {
    Input* const input = find_input(spec.name);
    if (input == nullptr && spec.optional) {
      inputs.emplace_back();
      continue;
    }
    if (input == nullptr) {
      return InvalidArgument("Signature input alias: " + spec.name + "(feed name: " + spec.tensor_name +
                             ") not found in request and no default value provided. Inputs expected to be in the "
                             "request " +
                             text_of(sent_names()) + ", or default input alias set: ");
    }
    const Status viewed = input->tensor.view(&budget, &inputs.emplace_back());
    if (!viewed.ok()) return InvalidArgument("tensor parsing error: " + spec.name + ": " + viewed.message());
  }
  return {};
}

// PreProcessPrediction in predict_util.cc.
Status PredictRequest::bind_outputs() {
  const auto count = static_cast<std::uint32_t>(output_count());
  outputs_.reserve(count);
  if (output_filter_.empty()) {
    for (std::uint32_t i = 0; i < count; ++i) outputs_.push_back(i);
    return {};
  }
  for (std::string_view name : output_filter_) {
    std::uint32_t position = 0;
    while (position < count && output_name(position) != name) ++position;
    if (position == count) {
      Names known;
      for (std::uint32_t i = 0; i < count; ++i) known.insert(output_name(i));
      return InvalidArgument("output tensor alias not found in signature: " + std::string(name) +
                             " Outputs expected to be in the set " + text_of(known) + ".");
    }
    if (std::find(outputs_.begin(), outputs_.end(), position) != outputs_.end())
      return InvalidArgument("duplicate output tensor alias: " + std::string(name));
    outputs_.push_back(position);
  }
  std::sort(outputs_.begin(), outputs_.end());
  return {};
}

// TensorFlow's own text for a feed of another type.
Status PredictRequest::check_dtypes() const {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const TensorSpec& spec = signature_->inputs[i];
    if (inputs[i].is_absent() || spec.dtype == DType::kInvalid || inputs[i].dtype == spec.dtype) continue;
    return InvalidArgument("Expects arg[" + std::to_string(i) + "] to be " + std::string(dtype_name(spec.dtype)) +
                           " but " + std::string(dtype_name(inputs[i].dtype)) + " is provided");
  }
  return {};
}

Status PredictRequest::write_reply(std::span<const TensorView> outputs) {
  assert(signature_ != nullptr);
  try {
    return encode(outputs);
  } catch (const std::bad_alloc&) {
    return out_of_memory();
  }
}

Status PredictRequest::encode(std::span<const TensorView> outputs) {
  if (outputs.size() != output_count()) {
    return Internal("the model gave " + std::to_string(outputs.size()) + " outputs, its signature has " +
                    std::to_string(output_count()));
  }
  if (outputs_are_open())
    if (Status bound = bind_outputs(); !bound.ok()) return bound;
  std::pmr::vector<TensorProtoSize> tensor_sizes(&arena_);
  tensor_sizes.reserve(outputs_.size());
  std::size_t total = 0;
  for (std::uint32_t i : outputs_) {
    const TensorView& tensor = outputs[i];
    const std::int64_t elements = tensor.elements();
    if (!dtype_is_served(tensor.dtype) || elements < 0 ||
        (tensor.dtype != DType::kString &&
         tensor.bytes != static_cast<std::size_t>(elements) * dtype_bytes(tensor.dtype))) {
      return Internal("output \"" + output_name(i) + "\" is " + std::to_string(tensor.bytes) + " bytes of " +
                      std::string(dtype_name(tensor.dtype)) + shape_text(tensor.shape));
    }
    tensor_sizes.push_back(tensor_proto_size(tensor));
    total += bytes_field_bytes(kResponseOutputs, bytes_field_bytes(kEntryKey, output_name(i).size()) +
                                                     bytes_field_bytes(kEntryValue, tensor_sizes.back().total));
  }
  const std::uint64_t version = static_cast<std::uint64_t>(version_);
  const std::size_t version_bytes = version == 0 ? 0 : varint_field_bytes(kInt64Value, version);
  const std::size_t spec_bytes = optional_bytes_field_bytes(kSpecName, model_name_) +
                                 bytes_field_bytes(kSpecVersion, version_bytes) +
                                 optional_bytes_field_bytes(kSpecSignatureName, signature_->name);
  total += bytes_field_bytes(kResponseModelSpec, spec_bytes);
  if (total > kMessageBytesMax) {
    return ResourceExhausted("response of " + std::to_string(total) + " bytes is larger than a message can be (" +
                             std::to_string(kMessageBytesMax) + "); ask for fewer outputs or send fewer rows");
  }

  response_.reserve(total);
  FieldWriter writer(&response_);
  for (std::size_t k = 0; k < outputs_.size(); ++k) {
    const std::string& name = output_name(outputs_[k]);
    writer.open_bytes_field(kResponseOutputs, bytes_field_bytes(kEntryKey, name.size()) +
                                                  bytes_field_bytes(kEntryValue, tensor_sizes[k].total));
    writer.write_bytes_field(kEntryKey, name);
    writer.open_bytes_field(kEntryValue, tensor_sizes[k].total);
    write_tensor_proto(outputs[outputs_[k]], tensor_sizes[k], &writer);
  }
  writer.open_bytes_field(kResponseModelSpec, spec_bytes);
  if (!model_name_.empty()) writer.write_bytes_field(kSpecName, model_name_);
  writer.open_bytes_field(kSpecVersion, version_bytes);
  if (version != 0) writer.write_varint_field(kInt64Value, version);
  if (!signature_->name.empty()) writer.write_bytes_field(kSpecSignatureName, signature_->name);
  writer.flush();
  assert(response_.size() == total);
  return {};
}

}  // namespace headrace
