// SPDX-License-Identifier: Apache-2.0
//
// ReservedSlot: Python's Slot, a private buffer for the rows of a request that is not queued yet.
//
// Thread safety: the GIL guards it.
// Ownership: the buffer lives as long as the slot, an array over it or the request that it became.

#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "bind/bind_lane.h"
#include "core/tensor.h"

namespace headrace {

class ReservedSlot {
 public:
  // Throws INVALID_ARGUMENT where `shapes` and `dtypes` leave something open, or contradict the signature or its
  // limits.
  static ReservedSlot reserve(const LaneHandle& lane, std::int64_t rows, const std::optional<pybind11::dict>& shapes,
                              const std::optional<pybind11::dict>& dtypes);

  const pybind11::dict& arrays() const { return arrays_; }
  Reply submit(std::optional<double> timeout);

 private:
  ReservedSlot() = default;

  LaneHandle lane_;
  std::vector<TensorView> views_;
  std::shared_ptr<std::byte> buffer_;
  pybind11::dict arrays_;
  bool submitted_ = false;
};

}  // namespace headrace
