// SPDX-License-Identifier: Apache-2.0
//
// Stage 6 of 8: TF_SessionRun on the slab itself.

#include "run/tensorflow_session.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <utility>

namespace headrace {
namespace {

// What TensorFlow gets for a tensor without bytes, since it wants an address.
alignas(kSlabAlignment) std::byte no_bytes[kSlabAlignment];

constexpr int kRefTypes = 100;  // DT_FLOAT_REF is 101

using Keeper = std::shared_ptr<const void>;

void drop_keeper(void* /*data*/, std::size_t /*bytes*/, void* keeper) { delete static_cast<Keeper*>(keeper); }

// TensorFlow's strings own memory of theirs, unlike its numbers.
void free_strings(void* data, std::size_t bytes, void* api) {
  auto* strings = static_cast<TF_TString*>(data);
  for (std::size_t i = 0; i < bytes / sizeof(TF_TString); ++i)
    static_cast<const TensorFlowApi*>(api)->TF_StringDealloc(&strings[i]);
  std::free(data);
}

TF_Tensor* new_numbers(const TensorFlowApi& api, const TensorView& view, const Keeper& keeper) {
  void* data = view.bytes == 0 ? no_bytes : const_cast<std::byte*>(view.data);  // TensorFlow never writes to a feed
  return api.TF_NewTensor(static_cast<int>(view.dtype), view.shape.data(), static_cast<int>(view.shape.size()), data,
                          view.bytes, drop_keeper, new Keeper(keeper));
}

TF_Tensor* new_strings(const TensorFlowApi& api, const TensorView& view) {
  const auto count = static_cast<std::size_t>(view.elements());
  const std::size_t bytes = count * sizeof(TF_TString);
  const std::size_t capacity = (bytes + kSlabAlignment) / kSlabAlignment * kSlabAlignment;
  auto* strings = static_cast<TF_TString*>(std::aligned_alloc(kSlabAlignment, capacity));
  if (strings == nullptr) return nullptr;
  for (std::size_t i = 0; i < count; ++i) {
    api.TF_StringInit(&strings[i]);
    api.TF_StringCopy(&strings[i], view.strings[i].data(), view.strings[i].size());
  }
  // The library's functions stay where they are for as long as the process lives.
  return api.TF_NewTensor(static_cast<int>(DType::kString), view.shape.data(), static_cast<int>(view.shape.size()),
                          strings, bytes, free_strings, const_cast<TensorFlowApi*>(&api));
}

// Tensors of one run, and what their views need.  Freed by whichever thread drops the last reply.
class RunTensors {
 public:
  RunTensors(std::shared_ptr<const TensorFlowLibrary> library, std::size_t count)
      : library_(std::move(library)), tensors_(count), strings_(count) {}
  ~RunTensors() {
    for (TF_Tensor* tensor : tensors_)
      if (tensor != nullptr) library_->api().TF_DeleteTensor(tensor);
  }
  RunTensors(const RunTensors&) = delete;
  RunTensors& operator=(const RunTensors&) = delete;

  std::vector<TF_Tensor*>& tensors() { return tensors_; }

  TensorView view(std::size_t i) {
    const TensorFlowApi& api = library_->api();
    const TF_Tensor* tensor = tensors_[i];
    TensorView view;
    view.dtype = static_cast<DType>(api.TF_TensorType(tensor));
    view.shape.resize(static_cast<std::size_t>(api.TF_NumDims(tensor)));
    for (std::size_t dim = 0; dim < view.shape.size(); ++dim)
      view.shape[dim] = api.TF_Dim(tensor, static_cast<int>(dim));
    if (view.dtype != DType::kString) {
      view.data = static_cast<const std::byte*>(api.TF_TensorData(tensor));
      view.bytes = api.TF_TensorByteSize(tensor);
      return view;
    }
    const auto* elements = static_cast<const TF_TString*>(api.TF_TensorData(tensor));
    const auto count = static_cast<std::size_t>(view.elements());
    strings_[i].reserve(std::max<std::size_t>(count, 1));  // a view of strings never has a null pointer
    for (std::size_t k = 0; k < count; ++k)
      strings_[i].emplace_back(api.TF_StringGetDataPointer(&elements[k]), api.TF_StringGetSize(&elements[k]));
    view.strings = strings_[i].data();
    return view;
  }

 private:
  std::shared_ptr<const TensorFlowLibrary> library_;
  std::vector<TF_Tensor*> tensors_;
  std::vector<std::vector<std::string_view>> strings_;
};

}  // namespace

TensorFlowSession::TensorFlowSession(std::shared_ptr<const TensorFlowLibrary> library)
    : library_(std::move(library)), graph_(library_->api().TF_NewGraph()) {}

TensorFlowSession::~TensorFlowSession() {
  const TensorFlowApi& api = library_->api();
  if (session_ != nullptr) {
    // Nobody is left to tell of a failure.
    ScopedTensorFlowStatus status(api);
    api.TF_CloseSession(session_, status.get());
    api.TF_DeleteSession(session_, status.get());
  }
  api.TF_DeleteGraph(graph_);
}

Status TensorFlowSession::load(std::shared_ptr<const TensorFlowLibrary> library, const std::string& export_dir,
                               const std::vector<std::string>& tags, std::string_view config,
                               std::shared_ptr<TensorFlowSession>* out) {
  const TensorFlowApi& api = library->api();
  ScopedTensorFlowStatus status(api);
  const std::unique_ptr<TF_SessionOptions, void (*)(TF_SessionOptions*)> options(api.TF_NewSessionOptions(),
                                                                                 api.TF_DeleteSessionOptions);
  api.TF_SetConfig(options.get(), config.data(), config.size(), status.get());
  if (!status.ok()) return status.status();
  std::vector<const char*> tag_names;
  for (const std::string& tag : tags) tag_names.push_back(tag.c_str());
  std::shared_ptr<TensorFlowSession> session(new TensorFlowSession(std::move(library)));
  session->session_ =
      api.TF_LoadSessionFromSavedModel(options.get(), nullptr, export_dir.c_str(), tag_names.data(),
                                       static_cast<int>(tag_names.size()), session->graph_, nullptr, status.get());
  if (!status.ok()) return status.status();
  *out = std::move(session);
  return {};
}

Status TensorFlowSession::list_devices(std::vector<Device>* out) const {
  const TensorFlowApi& api = library_->api();
  ScopedTensorFlowStatus status(api);
  const std::unique_ptr<TF_DeviceList, void (*)(TF_DeviceList*)> list(api.TF_SessionListDevices(session_, status.get()),
                                                                      api.TF_DeleteDeviceList);
  if (!status.ok()) return status.status();
  out->clear();
  for (int i = 0; i < api.TF_DeviceListCount(list.get()); ++i) {
    const char* name = api.TF_DeviceListName(list.get(), i, status.get());
    if (!status.ok()) return status.status();
    const char* type = api.TF_DeviceListType(list.get(), i, status.get());
    if (!status.ok()) return status.status();
    out->push_back({name, type});
  }
  return {};
}

Status TensorFlowSession::find(const std::string& tensor_name, TF_Output* out) const {
  const TensorFlowApi& api = library_->api();
  const std::size_t colon = tensor_name.rfind(':');
  int index = 0;  // "x" is "x:0"
  if (colon != std::string::npos) {
    const char* end = tensor_name.data() + tensor_name.size();
    const auto [parsed, error] = std::from_chars(tensor_name.data() + colon + 1, end, index);
    if (error != std::errc() || parsed != end || index < 0)
      return InvalidArgument("\"" + tensor_name + "\" is no name of a tensor");
  }
  TF_Operation* operation = api.TF_GraphOperationByName(graph_, tensor_name.substr(0, colon).c_str());
  if (operation == nullptr || index >= api.TF_OperationNumOutputs(operation))
    return NotFound("the graph has no tensor \"" + tensor_name + "\"");
  *out = {operation, index};
  return {};
}

DType TensorFlowSession::type(TF_Output tensor) const {
  return static_cast<DType>(library_->api().TF_OperationOutputType(tensor) % kRefTypes);
}

Status TensorFlowSession::run(std::span<const TF_Output> inputs, std::span<const TensorView> values,
                              const Keeper& keeper, std::span<const TF_Output> outputs, std::string_view run_options,
                              Outputs* fetched) const {
  const TensorFlowApi& api = library_->api();
  RunTensors fed(library_, values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    fed.tensors()[i] =
        values[i].dtype == DType::kString ? new_strings(api, values[i]) : new_numbers(api, values[i], keeper);
    if (fed.tensors()[i] == nullptr) return ResourceExhausted("no memory for an input of TensorFlow");
  }
  auto run = std::make_shared<RunTensors>(library_, outputs.size());
  const TF_Buffer options{run_options.data(), run_options.size(), nullptr};
  ScopedTensorFlowStatus status(api);
  api.TF_SessionRun(session_, &options, inputs.data(), fed.tensors().data(), static_cast<int>(values.size()),
                    outputs.data(), run->tensors().data(), static_cast<int>(outputs.size()), nullptr, 0, nullptr,
                    status.get());
  if (!status.ok()) return status.status();
  fetched->tensors.clear();
  for (std::size_t i = 0; i < outputs.size(); ++i) fetched->tensors.push_back(run->view(i));
  fetched->owner = std::move(run);
  return {};
}

}  // namespace headrace
