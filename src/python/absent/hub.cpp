// Models from directories alone.
#include "python/model_source.h"

namespace quire::python {

std::string find_model(const OrderedJson& source, const DownloadProgress& /*progress*/) {
  return source.at("model");
}

}  // namespace quire::python
