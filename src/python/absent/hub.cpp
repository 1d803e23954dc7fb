// Models from directories alone.
#include "python/model_source.h"

namespace quire::python {

std::string find_model(const ModelSource& source, const DownloadProgress& /*progress*/) {
  return source.model;
}

}  // namespace quire::python
