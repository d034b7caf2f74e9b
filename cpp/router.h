// SPDX-License-Identifier: Apache-2.0
//
// Router: which lane a request goes to, by model name, version and signature name.
//
// Thread safety: add() before the first route(); route() from any thread.
// Ownership: keeps its models.

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "core/status.h"
#include "model.h"
#include "wire/predict.h"

namespace headrace {

class Router {
 public:
  struct Route {
    std::string_view model_name;  // as it was added
    Model* model = nullptr;
    Lane* lane = nullptr;
  };

  // Requests for `name`, which need not be the model's own, go to the model.
  void add(const std::string& name, std::shared_ptr<Model> model);

  // The highest version where the request names none.  Errors as TF Serving has them (get_model_servable,
  // predict_util.cc): no such model or version NOT_FOUND, no such signature FAILED_PRECONDITION.
  Status route(const ModelSpec& spec, Route* route) const;

 private:
  using Versions = std::map<std::int64_t, std::shared_ptr<Model>>;
  std::map<std::string, Versions, std::less<>> models_;
};

}  // namespace headrace
