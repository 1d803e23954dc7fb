#include "backends/registry.h"

#include "backends/cpu/reference/reference_backend.h"
#include "base/error.h"

namespace quire {

std::unique_ptr<Backend> make_backend(std::string_view device) {
  if (device == "auto" || device == "cpu") return std::make_unique<ReferenceBackend>();
  fail("device \"{}\" is not known; use auto or cpu", device);
}

}  // namespace quire
