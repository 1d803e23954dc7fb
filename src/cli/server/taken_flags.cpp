#include <array>
#include <string>

#include "base/format.h"
#include "base/log.h"
#include "cli/server/serve_flags.h"

namespace quire::cli {
namespace {

struct TakenFlag {
  const char* names;
  const char* value;  // that is taken: empty: it has none; *: any
  const char* instead;
};

constexpr std::array<TakenFlag, 17> kTaken = {{
    {"--enable-auto-tool-choice", "", "the model may always choose to call a tool"},
    {"--enable-prompt-tokens-details", "", "usage always has them"},
    {"--enable-request-id-headers", "", "answers always have X-Request-Id"},
    {"--enable-chunked-prefill", "", "prompts are always computed in chunks"},
    {"--disable-log-requests,--no-enable-log-requests", "", "what is asked is never logged"},
    {"--max-log-len", "*", "what is asked is never logged"},
    {"--disable-log-stats", "", "statistics are never logged; /metrics has them"},
    {"--disable-frontend-multiprocessing", "", "one process answers"},
    {"--api-server-count", "1", "one process answers"},
    {"--data-parallel-size", "1", "each replica is a server of its own"},
    {"--pipeline-parallel-size", "1", "ranks share every layer"},
    {"--response-role", "assistant", "answers have this role"},
    {"--enable-server-load-tracking", "", "/load always has it"},
    {"--enable-tokenizer-info-endpoint", "", "/tokenizer_info is always there"},
    {"--disable-fastapi-docs", "", "there are no such pages; /openapi.json is always there"},
    {"--show-hidden-metrics-for-version", "*", "no metric is hidden"},
    {"--trust-remote-code", "", "nothing remote is ever run"},
}};

}  // namespace

void add_taken_flags(Flags flags) {
  for (const auto& [names, value, instead] : kTaken) {
    const std::string only = value;
    const auto tell = [names = std::string(names), instead = std::string(instead)] {
      const LogLevel level = names == "--trust-remote-code" ? LogLevel::kWarning : LogLevel::kInfo;
      log(level, "{}: {}", names, instead);
    };
    CLI::Option* const option = only.empty() ? flags.command.add_flag_callback(names, tell, instead)
                                             : flags.command.add_option_function<std::string>(
                                                   names, [tell](const std::string&) { tell(); }, instead);
    option->group("Taken, since it is so in any case");
    if (!only.empty() && only != "*") option->check(CLI::IsMember({only}));
  }
}

}  // namespace quire::cli
