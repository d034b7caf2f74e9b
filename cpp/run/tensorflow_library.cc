// SPDX-License-Identifier: Apache-2.0

#include "run/tensorflow_library.h"

#include <dlfcn.h>

namespace headrace {

Status TensorFlowLibrary::load(const std::string& path, std::shared_ptr<const TensorFlowLibrary>* out) {
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* why = dlerror();
    return FailedPrecondition("TensorFlow cannot be loaded: " + (why == nullptr ? path : std::string(why)));
  }
  std::shared_ptr<TensorFlowLibrary> library(new TensorFlowLibrary);
  // A handle's lookup covers the library's dependencies: some functions moved to libtensorflow_framework after 2.16.
#define HEADRACE_FIND(result, name, parameters)                                              \
  library->api_.name = reinterpret_cast<decltype(library->api_.name)>(dlsym(handle, #name)); \
  if (library->api_.name == nullptr)                                                         \
    return FailedPrecondition(path + " has no function " #name "; TensorFlow 2.16 or newer is needed");
  HEADRACE_TENSORFLOW_FUNCTIONS(HEADRACE_FIND)
#undef HEADRACE_FIND
  *out = std::move(library);
  return {};
}

Status ScopedTensorFlowStatus::status() const {
  const int code = api_.TF_GetCode(status_);
  if (code == 0) return {};
  const bool known = code > 0 && code <= static_cast<int>(Code::kUnauthenticated);
  return {known ? static_cast<Code>(code) : Code::kUnknown, api_.TF_Message(status_)};
}

}  // namespace headrace
