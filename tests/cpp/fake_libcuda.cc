// SPDX-License-Identifier: Apache-2.0
//
// A libcuda that records its calls.  Errors are made by fake_cuda_fail().

#include <cstddef>
#include <map>
#include <string>

namespace {

std::string calls;
std::map<std::string, int> failures;
int device_context = 0;  // its address is the primary context

int record(const std::string& function, const std::string& arguments) {
  calls += (calls.empty() ? "" : " ") + function + "(" + arguments + ")";
  const auto failure = failures.find(function);
  return failure == failures.end() ? 0 : failure->second;
}

}  // namespace

extern "C" {

const char* fake_cuda_calls() { return calls.c_str(); }

void fake_cuda_reset() {
  calls.clear();
  failures.clear();
}

void fake_cuda_fail(const char* function, int error) { failures[function] = error; }

int cuInit(unsigned flags) { return record("cuInit", std::to_string(flags)); }

int cuGetErrorString(int error, const char** text) {
  if (error != 100) return 1;
  *text = "no CUDA-capable device is detected";
  return 0;
}

int cuDeviceGet(int* device, int ordinal) {
  *device = 7;
  return record("cuDeviceGet", std::to_string(ordinal));
}

int cuDevicePrimaryCtxRetain(void** context, int device) {
  *context = &device_context;
  return record("cuDevicePrimaryCtxRetain", std::to_string(device));
}

int cuDevicePrimaryCtxRelease_v2(int device) { return record("cuDevicePrimaryCtxRelease", std::to_string(device)); }

int cuCtxPushCurrent_v2(void* context) {
  return record("cuCtxPushCurrent", context == &device_context ? "primary" : "other");
}

int cuCtxPopCurrent_v2(void** context) {
  *context = &device_context;
  return record("cuCtxPopCurrent", "");
}

int cuMemHostRegister_v2(void* data, std::size_t bytes, unsigned flags) {
  // Memory that is not there is a fault here, not in the driver.
  volatile char* ends = static_cast<char*>(data);
  ends[0] = ends[0];
  ends[bytes - 1] = ends[bytes - 1];
  return record("cuMemHostRegister", std::to_string(bytes) + "," + std::to_string(flags));
}

int cuMemHostUnregister(void* data) {
  volatile char* first = static_cast<char*>(data);
  first[0] = first[0];
  return record("cuMemHostUnregister", "");
}

}  // extern "C"
