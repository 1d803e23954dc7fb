// A program that serves nothing. Its commands are not in --help, and refused whatever follows them.
#include "base/error.h"
#include "cli/commands.h"

namespace quire::cli {
namespace {

void refuse(CLI::App& app, const char* name) {
  app.add_subcommand(name)->group("")->preparse_callback(
      [](std::size_t) { fail("this build has no server (QUIRE_SERVER=OFF)"); });
}

}  // namespace

void add_serve(CLI::App& app, Command& /*chosen*/) { refuse(app, "serve"); }

void add_bench_serve(CLI::App& bench, Command& /*chosen*/) { refuse(bench, "serve"); }

}  // namespace quire::cli
