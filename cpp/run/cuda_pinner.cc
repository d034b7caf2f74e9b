// SPDX-License-Identifier: Apache-2.0

#include "run/cuda_pinner.h"

#include <dlfcn.h>

#include <cstddef>

namespace headrace {

// The functions of the driver's API that are called, as cuda.h declares them.
struct CudaApi {
  int (*cuInit)(unsigned flags) = nullptr;
  int (*cuGetErrorString)(int error, const char** text) = nullptr;
  int (*cuDeviceGet)(int* device, int ordinal) = nullptr;
  int (*cuDevicePrimaryCtxRetain)(void** context, int device) = nullptr;
  int (*cuDevicePrimaryCtxRelease)(int device) = nullptr;
  int (*cuCtxPushCurrent)(void* context) = nullptr;
  int (*cuCtxPopCurrent)(void** context) = nullptr;
  int (*cuMemHostRegister)(void* data, std::size_t bytes, unsigned flags) = nullptr;
  int (*cuMemHostUnregister)(void* data) = nullptr;
};

namespace {

constexpr int kFirstDevice = 0;
constexpr unsigned kPortable = 1;  // CU_MEMHOSTREGISTER_PORTABLE: pinned for every context, so for every GPU

template <typename Function>
bool find(void* library, const char* name, Function* out) {
  *out = reinterpret_cast<Function>(dlsym(library, name));
  return *out != nullptr;
}

bool find_all(void* library, CudaApi* api) {
  // The names that cuda.h gives these functions by macro: the plain ones are for contexts of CUDA 3.
  return find(library, "cuInit", &api->cuInit) && find(library, "cuGetErrorString", &api->cuGetErrorString) &&
         find(library, "cuDeviceGet", &api->cuDeviceGet) &&
         find(library, "cuDevicePrimaryCtxRetain", &api->cuDevicePrimaryCtxRetain) &&
         find(library, "cuDevicePrimaryCtxRelease_v2", &api->cuDevicePrimaryCtxRelease) &&
         find(library, "cuCtxPushCurrent_v2", &api->cuCtxPushCurrent) &&
         find(library, "cuCtxPopCurrent_v2", &api->cuCtxPopCurrent) &&
         find(library, "cuMemHostRegister_v2", &api->cuMemHostRegister) &&
         find(library, "cuMemHostUnregister", &api->cuMemHostUnregister);
}

Status check(const CudaApi& api, const char* call, int error) {
  if (error == 0) return {};
  const char* text = nullptr;
  const bool known = api.cuGetErrorString(error, &text) == 0 && text != nullptr;
  return Unavailable(std::string(call) + ": " + (known ? std::string(text) : "error " + std::to_string(error)));
}

// Makes the context current for one call: threads of Headrace have none of their own, those of others keep theirs.
class CurrentContext {
 public:
  CurrentContext(const CudaApi& api, void* context) : api_(api), ok_(api.cuCtxPushCurrent(context) == 0) {}
  ~CurrentContext() {
    void* context = nullptr;
    if (ok_) api_.cuCtxPopCurrent(&context);
  }
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

  bool ok() const { return ok_; }

 private:
  const CudaApi& api_;
  const bool ok_;
};

}  // namespace

CudaPinner::CudaPinner(const std::string& library_path)
    : api_(std::make_unique<CudaApi>()), status_(open(library_path)) {}

Status CudaPinner::open(const std::string& library_path) {
  void* library = dlopen(library_path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return Unavailable("no NVIDIA driver: " + library_path + " cannot be loaded");
  if (!find_all(library, api_.get())) return Unavailable(library_path + " is too old: it lacks a function");
  if (Status status = check(*api_, "cuInit", api_->cuInit(0)); !status.ok()) return status;
  if (Status status = check(*api_, "cuDeviceGet", api_->cuDeviceGet(&device_, kFirstDevice)); !status.ok())
    return status;
  return check(*api_, "cuDevicePrimaryCtxRetain", api_->cuDevicePrimaryCtxRetain(&context_, device_));
}

CudaPinner::~CudaPinner() {
  if (status_.ok()) api_->cuDevicePrimaryCtxRelease(device_);
}

bool CudaPinner::pin(void* data, std::size_t bytes) {
  if (!status_.ok()) return false;
  const CurrentContext current(*api_, context_);
  return current.ok() && api_->cuMemHostRegister(data, bytes, kPortable) == 0;
}

void CudaPinner::unpin(void* data) {
  const CurrentContext current(*api_, context_);
  // A context that is gone, as at the process's end, has taken its registrations along.
  if (current.ok()) api_->cuMemHostUnregister(data);
}

}  // namespace headrace
