#include <map>
#include <ranges>

#include "base/error.h"
#include "base/json.h"
#include "models/model.h"

namespace quire {
namespace {

std::map<std::string, ModelFamily>& families() {
  static std::map<std::string, ModelFamily> instance;
  return instance;
}

}  // namespace

void register_family(const std::string& architecture, ModelFamily family) {
  QUIRE_CHECK(families().emplace(architecture, std::move(family)).second, "{} is registered twice",
              architecture);
}

const ModelFamily& find_model_family(const std::string& architecture) {
  const auto found = families().find(architecture);
  if (found != families().end()) return found->second;
  fail("config.json: the architecture {} is not known; known are: {}", in_quotes(architecture),
       join_text(std::views::keys(families()), ", "));
}

}  // namespace quire
