#include "server/window.h"

#include "base/error.h"

namespace quire::server {

void require_window() { fail("this build has no window (QUIRE_WINDOW=OFF)"); }

void answer_page(Exchange& /*exchange*/) { require_window(); }

std::unique_ptr<Window> make_window(Engine& /*engine*/, WindowOptions /*options*/) {
  require_window();
  return nullptr;
}

std::unique_ptr<Window> make_window(Recording /*recording*/) {
  require_window();
  return nullptr;
}

}  // namespace quire::server
