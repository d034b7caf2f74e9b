// SPDX-License-Identifier: Apache-2.0
//
// CudaPinner: registers slabs with the GPU through libcuda, so that feeds are copied directly and asynchronously.
//
// Thread safety: pin() and unpin() from any thread.
// Ownership: keeps the device's primary context, the one that TensorFlow uses, until it is destroyed.  libcuda stays
//   loaded until the process ends.
// Progress: pin() may take milliseconds; it is called when a slab is made, never on the way of a request through one.

#pragma once

#include <memory>
#include <string>

#include "core/slab.h"
#include "core/status.h"

namespace headrace {

struct CudaApi;

class CudaPinner final : public SlabPinner {
 public:
  // Without a driver or a device it pins nothing, and status() says why.
  explicit CudaPinner(const std::string& library_path);

  ~CudaPinner() override;
  CudaPinner(const CudaPinner&) = delete;
  CudaPinner& operator=(const CudaPinner&) = delete;

  // UNAVAILABLE, with the reason in words, or OK.
  const Status& status() const { return status_; }

  bool pin(void* data, std::size_t bytes) override;
  void unpin(void* data) override;

 private:
  Status open(const std::string& library_path);

  std::unique_ptr<CudaApi> api_;
  int device_ = 0;
  void* context_ = nullptr;
  Status status_;
};

}  // namespace headrace
