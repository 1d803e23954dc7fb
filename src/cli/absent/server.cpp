// Commands that are not in --help, and refused whatever follows them.
#include "base/error.h"
#include "cli/commands.h"

namespace quire::cli {

constexpr char kNoServer[] = "this build has no server (QUIRE_SERVER=OFF)";
void add_serve(CLI::App& app, Command& /*chosen*/) {
  app.add_subcommand("serve")->group("")->preparse_callback([](std::size_t) { fail(kNoServer); });
}

void add_bench_serve(CLI::App& bench, Command& chosen) { add_serve(bench, chosen); }

int serve_recording(const std::string& /*path*/, int /*port*/) { fail(kNoServer); }

std::unique_ptr<TurnRunner> open_agent_server(const AgentServer& /*server*/) { fail(kNoServer); }

}  // namespace quire::cli
