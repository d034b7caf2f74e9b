// SPDX-License-Identifier: Apache-2.0
//
// A TensorFlow of a few operations, which shares and counts buffers as the real one does.
//
//   x (float) and s (string) are fed;  double = 2x;  same = x's own buffer;  pair:0 = x + 1, pair:1 = the rows (int64);
//   adopt keeps x's buffer and gives what it kept before;  shout = s and "!";  five = a constant;
//   refuse and strange fail with code 3 and code 77.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "run/tensorflow_api.h"

namespace {

constexpr int kFloat = 1, kString = 7, kInt64 = 9;

int live_tensors = 0;
int live_sessions = 0;
int runs = 0;
int fetches = 0;
std::string config;
std::string options;

struct Buffer {
  void* data;
  std::size_t bytes;
  void (*deallocator)(void*, std::size_t, void*);
  void* argument;

  Buffer(void* data, std::size_t bytes, void (*deallocator)(void*, std::size_t, void*), void* argument)
      : data(data), bytes(bytes), deallocator(deallocator), argument(argument) {}
  ~Buffer() { deallocator(data, bytes, argument); }
};

void free_memory(void* data, std::size_t /*bytes*/, void* /*argument*/) { std::free(data); }

// What a TF_TString holds here.
struct Text {
  char* data;
  std::size_t size;
};

Text* text(TF_TString* string) { return reinterpret_cast<Text*>(string->opaque); }
const Text* text(const TF_TString* string) { return reinterpret_cast<const Text*>(string->opaque); }

void set_text(TF_TString* string, const std::string& value) {
  text(string)->data = static_cast<char*>(std::malloc(value.size() + 1));
  text(string)->size = value.size();
  std::memcpy(text(string)->data, value.c_str(), value.size() + 1);
}

void free_texts(void* data, std::size_t bytes, void* /*argument*/) {
  for (std::size_t i = 0; i < bytes / sizeof(TF_TString); ++i)
    std::free(text(static_cast<TF_TString*>(data) + i)->data);
  std::free(data);
}

}  // namespace

extern "C" {

struct TF_Operation {
  const char* name;
  std::vector<int> types;
};
struct TF_Graph {};
struct TF_Status {
  int code = 0;
  std::string message;
};
struct TF_SessionOptions {};
struct TF_Tensor {
  int dtype;
  std::vector<std::int64_t> dims;
  std::shared_ptr<Buffer> buffer;
};
struct TF_Session {
  std::shared_ptr<Buffer> adopted;
  std::vector<std::int64_t> adopted_dims;
};
struct TF_DeviceList {};

}  // extern "C"

namespace {

TF_Operation operations[] = {
    {"x", {kFloat}},     {"s", {kString}},     {"double", {kFloat}}, {"same", {kFloat}},   {"pair", {kFloat, kInt64}},
    {"adopt", {kFloat}}, {"shout", {kString}}, {"five", {kFloat}},   {"refuse", {kFloat}}, {"strange", {100 + kFloat}}};

TF_Tensor* new_tensor(int dtype, std::vector<std::int64_t> dims, std::shared_ptr<Buffer> buffer) {
  ++live_tensors;
  return new TF_Tensor{dtype, std::move(dims), std::move(buffer)};
}

template <typename T>
TF_Tensor* made(int dtype, const std::vector<std::int64_t>& dims, const std::vector<T>& values) {
  const std::size_t bytes = values.size() * sizeof(T);
  void* data = std::malloc(bytes + 1);
  if (bytes != 0) std::memcpy(data, values.data(), bytes);
  return new_tensor(dtype, dims, std::make_shared<Buffer>(data, bytes, free_memory, nullptr));
}

std::vector<float> floats(const TF_Tensor& tensor, float factor, float plus) {
  const auto* data = static_cast<const float*>(tensor.buffer->data);
  std::vector<float> values(data, data + tensor.buffer->bytes / sizeof(float));
  for (float& value : values) value = value * factor + plus;
  return values;
}

TF_Tensor* shouted(const TF_Tensor& tensor) {
  const std::size_t bytes = tensor.buffer->bytes;
  auto* strings = static_cast<TF_TString*>(std::malloc(bytes + 1));
  for (std::size_t i = 0; i < bytes / sizeof(TF_TString); ++i) {
    const Text* from = text(static_cast<const TF_TString*>(tensor.buffer->data) + i);
    set_text(strings + i, std::string(from->data, from->size) + "!");
  }
  return new_tensor(kString, tensor.dims, std::make_shared<Buffer>(strings, bytes, free_texts, nullptr));
}

TF_Tensor* adopt(TF_Session* session, const TF_Tensor& x) {
  const std::shared_ptr<Buffer> before = session->adopted;
  const std::vector<std::int64_t> dims = before ? session->adopted_dims : std::vector<std::int64_t>{0};
  session->adopted = x.buffer;
  session->adopted_dims = x.dims;
  return before ? new_tensor(kFloat, dims, before) : made<float>(kFloat, dims, {});
}

}  // namespace

extern "C" {

int fake_live_tensors() { return live_tensors; }
int fake_live_sessions() { return live_sessions; }
int fake_runs() { return runs; }
int fake_fetches() { return fetches; }
const char* fake_config() { return config.c_str(); }
const char* fake_options() { return options.c_str(); }

const char* TF_Version() { return "2.0.0-fake"; }

TF_Status* TF_NewStatus() { return new TF_Status; }
void TF_DeleteStatus(TF_Status* status) { delete status; }
int TF_GetCode(const TF_Status* status) { return status->code; }
const char* TF_Message(const TF_Status* status) { return status->message.c_str(); }

TF_Graph* TF_NewGraph() { return new TF_Graph; }
void TF_DeleteGraph(TF_Graph* graph) { delete graph; }

TF_Operation* TF_GraphOperationByName(TF_Graph*, const char* name) {
  for (TF_Operation& operation : operations)
    if (std::strcmp(operation.name, name) == 0) return &operation;
  return nullptr;
}

int TF_OperationNumOutputs(TF_Operation* operation) { return static_cast<int>(operation->types.size()); }
int TF_OperationOutputType(TF_Output output) { return output.oper->types[static_cast<std::size_t>(output.index)]; }

TF_SessionOptions* TF_NewSessionOptions() { return new TF_SessionOptions; }
void TF_DeleteSessionOptions(TF_SessionOptions* session_options) { delete session_options; }

void TF_SetConfig(TF_SessionOptions*, const void* proto, std::size_t bytes, TF_Status* status) {
  config.assign(static_cast<const char*>(proto), bytes);
  if (config == "bad") *status = {3, "Unparseable ConfigProto"};
}

TF_Session* TF_LoadSessionFromSavedModel(const TF_SessionOptions*, const TF_Buffer*, const char* export_dir,
                                         const char* const* tags, int tag_count, TF_Graph*, TF_Buffer*,
                                         TF_Status* status) {
  if (tag_count != 1 || std::strcmp(tags[0], "serve") != 0) {
    *status = {5, std::string("no such tags in ") + export_dir};
    return nullptr;
  }
  ++live_sessions;
  return new TF_Session;
}

void TF_CloseSession(TF_Session*, TF_Status*) {}
void TF_DeleteSession(TF_Session* session, TF_Status*) {
  --live_sessions;
  delete session;
}

TF_DeviceList* TF_SessionListDevices(TF_Session*, TF_Status*) { return new TF_DeviceList; }
int TF_DeviceListCount(const TF_DeviceList*) { return 2; }
const char* TF_DeviceListName(const TF_DeviceList*, int index, TF_Status*) {
  return index == 0 ? "/device:CPU:0" : "/device:GPU:0";
}
const char* TF_DeviceListType(const TF_DeviceList*, int index, TF_Status*) { return index == 0 ? "CPU" : "GPU"; }
void TF_DeleteDeviceList(TF_DeviceList* list) { delete list; }

TF_Tensor* TF_NewTensor(int dtype, const std::int64_t* dims, int rank, void* data, std::size_t bytes,
                        void (*deallocator)(void*, std::size_t, void*), void* argument) {
  return new_tensor(dtype, std::vector<std::int64_t>(dims, dims + rank),
                    std::make_shared<Buffer>(data, bytes, deallocator, argument));
}

void TF_DeleteTensor(TF_Tensor* tensor) {
  --live_tensors;
  delete tensor;
}

int TF_TensorType(const TF_Tensor* tensor) { return tensor->dtype; }
int TF_NumDims(const TF_Tensor* tensor) { return static_cast<int>(tensor->dims.size()); }
std::int64_t TF_Dim(const TF_Tensor* tensor, int dim) { return tensor->dims[static_cast<std::size_t>(dim)]; }
std::size_t TF_TensorByteSize(const TF_Tensor* tensor) { return tensor->buffer->bytes; }
void* TF_TensorData(const TF_Tensor* tensor) { return tensor->buffer->data; }

void TF_StringInit(TF_TString* string) { *text(string) = {nullptr, 0}; }
void TF_StringCopy(TF_TString* string, const char* data, std::size_t size) {
  std::free(text(string)->data);
  set_text(string, std::string(data, size));
}
const char* TF_StringGetDataPointer(const TF_TString* string) { return text(string)->data; }
std::size_t TF_StringGetSize(const TF_TString* string) { return text(string)->size; }
void TF_StringDealloc(TF_TString* string) {
  std::free(text(string)->data);
  *text(string) = {nullptr, 0};
}

void TF_SessionRun(TF_Session* session, const TF_Buffer* run_options, const TF_Output* inputs,
                   TF_Tensor* const* input_values, int input_count, const TF_Output* outputs, TF_Tensor** output_values,
                   int output_count, const TF_Operation* const*, int, TF_Buffer*, TF_Status* status) {
  ++runs;
  fetches = output_count;
  options.assign(static_cast<const char*>(run_options->data), run_options->length);
  const TF_Tensor* x = nullptr;
  const TF_Tensor* s = nullptr;
  for (int i = 0; i < input_count; ++i) (inputs[i].oper == &operations[0] ? x : s) = input_values[i];
  for (int i = 0; i < output_count; ++i) {
    const std::string name = outputs[i].oper->name;
    if (name == "refuse" || name == "strange") {
      *status = {name == "refuse" ? 3 : 77, "the model refuses"};
      for (int k = 0; k < i; ++k) {
        TF_DeleteTensor(output_values[k]);
        output_values[k] = nullptr;
      }
      return;
    }
    if (name == "double") output_values[i] = made(kFloat, x->dims, floats(*x, 2, 0));
    if (name == "same") output_values[i] = new_tensor(kFloat, x->dims, x->buffer);
    if (name == "adopt") output_values[i] = adopt(session, *x);
    if (name == "pair" && outputs[i].index == 0) output_values[i] = made(kFloat, x->dims, floats(*x, 1, 1));
    if (name == "pair" && outputs[i].index == 1)
      output_values[i] = made(kInt64, {x->dims[0]}, std::vector<std::int64_t>(x->dims[0], x->dims[0]));
    if (name == "shout") output_values[i] = shouted(*s);
    if (name == "five") output_values[i] = made<float>(kFloat, {}, {5});
  }
}

}  // extern "C"
