#include "server/window.h"

#include "expect_error.h"

namespace quire::server {
namespace {

TEST(WithoutWindowTest, IsRefusedByName) {
  expect_error([] { require_window(); }, {"this build has no window (QUIRE_WINDOW=OFF)"});
}

}  // namespace
}  // namespace quire::server
