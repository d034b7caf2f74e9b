// SPDX-License-Identifier: Apache-2.0

#include "router.h"

#include <string_view>
#include <utility>

namespace headrace {

void Router::add(const std::string& name, std::shared_ptr<Model> model) {
  const std::int64_t version = model->version();
  models_[name][version] = std::move(model);
}

Status Router::route(const ModelSpec& spec, Route* route) const {
  if (!spec.present) return InvalidArgument("Missing ModelSpec");
  const std::string name(spec.name);
  if (name.empty()) return InvalidArgument("ModelSpec has no name specified.");
  if (spec.version_label) return Unavailable("Model labels does not init yet." + std::string(*spec.version_label));
  const auto versions = models_.find(name);
  if (spec.version) {
    const std::string asked =
        "Servable not found for request: Specific(" + name + ", " + std::to_string(*spec.version) + ")";
    if (versions == models_.end()) return NotFound(asked);
    const auto found = versions->second.find(*spec.version);
    if (found == versions->second.end()) return NotFound(asked);
    route->model = found->second.get();
  } else {
    if (versions == models_.end()) return NotFound("Servable not found for request: Latest(" + name + ")");
    route->model = versions->second.rbegin()->second.get();
  }
  route->model_name = versions->first;
  const std::string_view signature = spec.signature_name.empty() ? "serving_default" : spec.signature_name;
  route->lane = route->model->lane(signature);
  if (route->lane == nullptr)
    return FailedPrecondition("Serving signature key \"" + std::string(signature) + "\" not found.");
  return {};
}

}  // namespace headrace
