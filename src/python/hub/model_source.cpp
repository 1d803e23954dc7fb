#include "python/model_source.h"

#include "hub/download.h"

namespace quire::python {

std::string find_model(const ModelSource& source, const DownloadProgress& progress) {
  if (!is_hub_model(source.model)) return source.model;
  const HubModel model = parse_hub_model(source.model, source.revision, source.with_weights);
  HubSettings settings = hub_settings_from_environment();
  settings.offline = settings.offline || source.offline;
  bool stopped = false;
  DownloadHooks hooks;
  hooks.on_progress = [&](std::uint64_t done, std::uint64_t total) { stopped = progress(done, total); };
  hooks.stopped = [&] { return stopped; };
  return find_hub_model(settings, model, hooks).string();
}

}  // namespace quire::python
