// SPDX-License-Identifier: Apache-2.0
//
// The functions of TensorFlow's C API that Headrace calls, declared here so that one build serves every TensorFlow.
// They are the same in 2.16 to 2.21; tensorflow/c/{c_api,tf_tensor,tf_tstring,tf_status}.h describe them.
//
// Thread safety: TensorFlow's; a TF_Session and a TF_Graph may be used from any number of threads.

#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

struct TF_DeviceList;
struct TF_Graph;
struct TF_Operation;
struct TF_Session;
struct TF_SessionOptions;
struct TF_Status;
struct TF_Tensor;

struct TF_Buffer {
  const void* data;
  std::size_t length;
  void (*data_deallocator)(void* data, std::size_t length);
};

// One output of an operation: a tensor of the graph.
struct TF_Output {
  TF_Operation* oper;
  int index;
};

// A string element of a tensor, to be touched by TF_String* only.
struct alignas(8) TF_TString {
  unsigned char opaque[24];
};

}  // extern "C"

namespace headrace {

// FUNCTION(result, name, parameters)
#define HEADRACE_TENSORFLOW_FUNCTIONS(FUNCTION)                                                                      \
  FUNCTION(const char*, TF_Version, ())                                                                              \
  FUNCTION(TF_Status*, TF_NewStatus, ())                                                                             \
  FUNCTION(void, TF_DeleteStatus, (TF_Status*))                                                                      \
  FUNCTION(int, TF_GetCode, (const TF_Status*))                                                                      \
  FUNCTION(const char*, TF_Message, (const TF_Status*))                                                              \
  FUNCTION(TF_Graph*, TF_NewGraph, ())                                                                               \
  FUNCTION(void, TF_DeleteGraph, (TF_Graph*))                                                                        \
  FUNCTION(TF_Operation*, TF_GraphOperationByName, (TF_Graph*, const char* name))                                    \
  FUNCTION(int, TF_OperationNumOutputs, (TF_Operation*))                                                             \
  FUNCTION(int, TF_OperationOutputType, (TF_Output))                                                                 \
  FUNCTION(TF_SessionOptions*, TF_NewSessionOptions, ())                                                             \
  FUNCTION(void, TF_SetConfig, (TF_SessionOptions*, const void* proto, std::size_t bytes, TF_Status*))               \
  FUNCTION(void, TF_DeleteSessionOptions, (TF_SessionOptions*))                                                      \
  FUNCTION(TF_Session*, TF_LoadSessionFromSavedModel,                                                                \
           (const TF_SessionOptions*, const TF_Buffer* run_options, const char* export_dir, const char* const* tags, \
            int tag_count, TF_Graph*, TF_Buffer* meta_graph_def, TF_Status*))                                        \
  FUNCTION(void, TF_SessionRun,                                                                                      \
           (TF_Session*, const TF_Buffer* run_options, const TF_Output* inputs, TF_Tensor* const* input_values,      \
            int input_count, const TF_Output* outputs, TF_Tensor** output_values, int output_count,                  \
            const TF_Operation* const* targets, int target_count, TF_Buffer* run_metadata, TF_Status*))              \
  FUNCTION(void, TF_CloseSession, (TF_Session*, TF_Status*))                                                         \
  FUNCTION(void, TF_DeleteSession, (TF_Session*, TF_Status*))                                                        \
  FUNCTION(TF_DeviceList*, TF_SessionListDevices, (TF_Session*, TF_Status*))                                         \
  FUNCTION(int, TF_DeviceListCount, (const TF_DeviceList*))                                                          \
  FUNCTION(const char*, TF_DeviceListName, (const TF_DeviceList*, int index, TF_Status*))                            \
  FUNCTION(const char*, TF_DeviceListType, (const TF_DeviceList*, int index, TF_Status*))                            \
  FUNCTION(void, TF_DeleteDeviceList, (TF_DeviceList*))                                                              \
  FUNCTION(TF_Tensor*, TF_NewTensor,                                                                                 \
           (int dtype, const std::int64_t* dims, int rank, void* data, std::size_t bytes,                            \
            void (*deallocator)(void* data, std::size_t bytes, void* argument), void* argument))                     \
  FUNCTION(void, TF_DeleteTensor, (TF_Tensor*))                                                                      \
  FUNCTION(int, TF_TensorType, (const TF_Tensor*))                                                                   \
  FUNCTION(int, TF_NumDims, (const TF_Tensor*))                                                                      \
  FUNCTION(std::int64_t, TF_Dim, (const TF_Tensor*, int dim))                                                        \
  FUNCTION(std::size_t, TF_TensorByteSize, (const TF_Tensor*))                                                       \
  FUNCTION(void*, TF_TensorData, (const TF_Tensor*))                                                                 \
  FUNCTION(void, TF_StringInit, (TF_TString*))                                                                       \
  FUNCTION(void, TF_StringCopy, (TF_TString*, const char* data, std::size_t size))                                   \
  FUNCTION(const char*, TF_StringGetDataPointer, (const TF_TString*))                                                \
  FUNCTION(std::size_t, TF_StringGetSize, (const TF_TString*))                                                       \
  FUNCTION(void, TF_StringDealloc, (TF_TString*))

// Where each function is in the library that was loaded.
struct TensorFlowApi {
#define HEADRACE_MEMBER(result, name, parameters) result(*name) parameters = nullptr;
  HEADRACE_TENSORFLOW_FUNCTIONS(HEADRACE_MEMBER)
#undef HEADRACE_MEMBER
};

}  // namespace headrace
