// SPDX-License-Identifier: Apache-2.0
//
// MethodTable: what is to be done with a call, by its path.
//
// Thread safety: built once, read only from then on.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace headrace {

struct Method {
  enum class Kind : std::uint8_t { kPredict, kHealthCheck, kHealthWatch, kHandler, kHandlerStream };

  // Whether its calls go on until the client or the server ends them.
  bool is_stream() const { return kind == Kind::kHealthWatch || kind == Kind::kHandlerStream; }
  bool is_health() const { return kind == Kind::kHealthCheck || kind == Kind::kHealthWatch; }

  std::string path;
  Kind kind;
};

class MethodTable {
 public:
  void add(std::string path, Method::Kind kind) { others_.push_back({std::move(path), kind}); }

  // Null for a path that nobody serves.
  const Method* find(std::string_view path) const {
    if (path == predict_.path) return &predict_;
    for (const Method& method : others_)
      if (method.path == path) return &method;
    return nullptr;
  }

 private:
  const Method predict_{"/tensorflow.serving.PredictionService/Predict", Method::Kind::kPredict};
  std::vector<Method> others_{{"/grpc.health.v1.Health/Check", Method::Kind::kHealthCheck},
                              {"/grpc.health.v1.Health/Watch", Method::Kind::kHealthWatch}};
};

}  // namespace headrace
