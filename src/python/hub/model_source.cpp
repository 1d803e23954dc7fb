#include "python/model_source.h"

#include "hub/download.h"

namespace quire::python {

std::string find_model(const OrderedJson& source, const DownloadProgress& progress) {
  const std::string name = source.at("model");
  if (!is_hub_model(name)) return name;
  const HubModel model = parse_hub_model(name, source.at("revision"), source.at("with_weights"));
  const HubSettings settings = hub_settings_from_environment(source.at("offline"));
  const DownloadHooks hooks{.on_progress = progress, .stopped = [&] { return progress(0, 0); }};
  return find_hub_model(settings, model, hooks).string();
}

}  // namespace quire::python
