#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "inspect/agent_bench.h"

namespace quire::cli {

// Adds a subcommand; when the command line names it, `chosen` becomes what runs it and returns the exit code.
using Command = std::function<int()>;
void add_chat(CLI::App& app, Command& chosen);
void add_generate(CLI::App& app, Command& chosen);
void add_serve(CLI::App& app, Command& chosen);
void add_bench(CLI::App& app, Command& chosen);
void add_bench_serve(CLI::App& bench, Command& chosen);  // subcommands of bench
void add_bench_costs(CLI::App& bench, Command& chosen);
void add_bench_techniques(CLI::App& bench, Command& chosen);
void add_simulate(CLI::App& app, Command& chosen);
void add_plan(CLI::App& app, Command& chosen);
void add_quantize(CLI::App& app, Command& chosen);
void add_doctor(CLI::App& app, Command& chosen);
void add_verify(CLI::App& app, Command& chosen);  // and checksum
void add_replay(CLI::App& app, Command& chosen);
void add_eval(CLI::App& app, Command& chosen);
void add_line_commands(CLI::App& app, Command& chosen);  // tokenize, detokenize and render

struct AgentServer {
  std::string url, model, api_key, extra_body = R"({"return_token_ids": true})";
  float temperature = 0.6F;
};
std::unique_ptr<TurnRunner> open_agent_server(const AgentServer& server);  // for `bench agent`

// Shows a recording on a page until a signal comes, of `quire replay FILE --window`. port 0: any that is
// free.
int serve_recording(const std::string& path, int port);

// Has a flag of whole numbers read them as decimal ones, where CLI11 takes 010 for 8 and, of a type without a
// sign, -1 for the largest number; one that does not fit is refused.
void read_as_decimal(CLI::Option& option);

// What CLI11's validators let pass, or refuse, otherwise: NaN is in each of its ranges, and infinity is no
// positive number.
std::string refuse_nan(const std::string& text);
inline const CLI::Range kPositive(std::numeric_limits<double>::min(), std::numeric_limits<double>::infinity(),
                                  "POSITIVE");

// Adds options to a command, of the forms that they have. The variables outlive the parsing.
struct Flags {
  CLI::App& command;

  template <typename T>
  CLI::Option* value(const std::string& names, T& variable, const std::string& what,
                     const std::optional<CLI::Validator>& check = {}) {
    CLI::Option* const option = command.add_option(names, variable, what);
    return check ? option->check(*check)->check(refuse_nan) : option;
  }
  // Its help shows the default.
  template <typename T>
  CLI::Option* shown(const std::string& names, T& variable, const std::string& what,
                     const std::optional<CLI::Validator>& check = {}) {
    return value(names, variable, what, check)->capture_default_str();
  }
  // Repeatable, with one value each.
  template <typename T>
  CLI::Option* list(const std::string& names, T& variable, const std::string& what,
                    const std::optional<CLI::Validator>& check = {}) {
    return value(names, variable, what, check)->allow_extra_args(false);
  }
  // The same, with commas between several.
  template <typename T>
  CLI::Option* comma_list(const std::string& names, T& variable, const std::string& what,
                          const std::optional<CLI::Validator>& check = {}) {
    return list(names, variable, what, check)->delimiter(',');
  }
  // With or without a unit.
  CLI::Option* bytes(const std::string& names, std::size_t& variable, const std::string& what) {
    return value(names, variable, what)->transform(CLI::AsSizeValue(false));
  }
  CLI::Option* on(const std::string& names, bool& variable, const std::string& what) {
    return command.add_flag(names, variable, what);
  }
  CLI::Option* off(const std::string& names, bool& variable, const std::string& what) {
    const auto clear = [&variable] { variable = false; };
    return command.add_flag_callback(names, clear, what);
  }
};

// A subcommand: State::add_to adds the options that fill a State, and State::run is what runs it.
template <typename State>
void add_command(CLI::App& app, Command& chosen, const std::string& name, const std::string& what) {
  CLI::App* const command = app.add_subcommand(name, what);
  const auto state = std::make_shared<State>();
  state->add_to({*command});
  for (CLI::Option* const option : command->get_options()) read_as_decimal(*option);
  command->callback([&chosen, state] { chosen = [state] { return state->run(); }; });
}

// Exit codes. Success is 0.
inline constexpr int kFailed = 1;       // the command ran and its answer is no, or something broke
inline constexpr int kUserMistake = 2;  // a bad flag, file or request
inline constexpr int kInterrupted = 130;

// MODEL as a hub id, which cli/hub implements, and cli/absent/hub.cpp where that part is left out.

// Where a MODEL that is a hub id comes from.
struct ModelSource {
  std::string revision = "main";
  bool offline = false;
  bool interruptible = true;  // Ctrl-C throws Stopped

  // The directory of a hub id, downloaded where it is not in the cache; anything else as it is.
  std::string find(const std::string& model, bool with_weights = true) const;
};

void add_source_options(Flags flags, ModelSource& source);

// Of `quire serve` (cli/server/serve_flags.cpp).

// --config FILE: YAML whose keys are the command's flags. To be added before them, so that it is read before
// what they mean is looked at. What the command line or the environment gives stays.
void add_config_file(Flags flags);

// Flags of vLLM's that say what is so here in any case.
void add_taken_flags(Flags flags);

}  // namespace quire::cli
