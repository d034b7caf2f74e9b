// SPDX-License-Identifier: Apache-2.0
//
// TensorFlowLibrary: TensorFlow's C API, loaded by name into a scope of its own.
//
// Thread safety: load() from any thread; read only from then on.
// Ownership: the library stays loaded until the process ends, since its threads do.
// Invariant: it is never in the global scope.  There its OpenSSL and zlib would take the place of everybody else's.

#pragma once

#include <memory>
#include <string>

#include "core/status.h"
#include "run/tensorflow_api.h"

namespace headrace {

class TensorFlowLibrary {
 public:
  // `path` is the file of libtensorflow_cc.so.2.  FAILED_PRECONDITION where it cannot be loaded or lacks a function.
  // Where the process has loaded that file already, by `import tensorflow` too, it is the same library.
  static Status load(const std::string& path, std::shared_ptr<const TensorFlowLibrary>* out);

  const TensorFlowApi& api() const { return api_; }
  std::string version() const { return api_.TF_Version(); }

 private:
  TensorFlowLibrary() = default;

  TensorFlowApi api_;
};

// A TF_Status for the calls of one function.
class ScopedTensorFlowStatus {
 public:
  explicit ScopedTensorFlowStatus(const TensorFlowApi& api) : api_(api), status_(api.TF_NewStatus()) {}
  ~ScopedTensorFlowStatus() { api_.TF_DeleteStatus(status_); }
  ScopedTensorFlowStatus(const ScopedTensorFlowStatus&) = delete;
  ScopedTensorFlowStatus& operator=(const ScopedTensorFlowStatus&) = delete;

  TF_Status* get() const { return status_; }
  bool ok() const { return api_.TF_GetCode(status_) == 0; }
  // With TensorFlow's code, which is gRPC's, and its message.
  Status status() const;

 private:
  const TensorFlowApi& api_;
  TF_Status* status_;
};

}  // namespace headrace
