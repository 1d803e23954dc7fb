#include "expect_error.h"
#include "server/window.h"

namespace quire::server {
namespace {

TEST(WithoutWindowTest, IsRefusedByName) {
  expect_error([] { require_window(); }, {"this build has no window (QUIRE_WINDOW=OFF)"});
}

}  // namespace
}  // namespace quire::server
