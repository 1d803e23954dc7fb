#include "python/model_source.h"

#include <filesystem>

#include "base/error.h"
#include "hub/download.h"
#include "hub/gguf_files.h"

namespace quire::python {

std::string find_model(const ModelSource& source, const DownloadProgress& progress) {
  HubName name = parse_hub_name(source.model);
  std::error_code ec;
  if (!is_hub_id(name.id) || std::filesystem::exists(source.model, ec)) return source.model;
  if (name.gguf.empty() && source.model.ends_with(':'))
    fail("{}: behind the colon comes a GGUF file of it, or a quantisation such as Q4_K_M", source.model);
  HubSettings settings = hub_settings_from_environment();
  settings.offline = settings.offline || source.offline;
  bool stopped = false;
  DownloadHooks hooks;
  hooks.on_progress = [&](std::uint64_t done, std::uint64_t total) { stopped = progress(done, total); };
  hooks.stopped = [&] { return stopped; };
  const ModelParts parts = source.with_weights ? ModelParts::kAll : ModelParts::kText;
  return find_hub_model(settings, {std::move(name.id), source.revision, parts, std::move(name.gguf)}, hooks)
      .string();
}

}  // namespace quire::python
