#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace quire::cli {

// Adds a subcommand; when the command line names it, `chosen` becomes what runs it and returns the exit code.
using Command = std::function<int()>;
void add_chat(CLI::App& app, Command& chosen);
void add_generate(CLI::App& app, Command& chosen);
void add_serve(CLI::App& app, Command& chosen);
void add_bench(CLI::App& app, Command& chosen);
void add_bench_serve(CLI::App& bench, Command& chosen);  // a subcommand of bench
void add_plan(CLI::App& app, Command& chosen);
void add_doctor(CLI::App& app, Command& chosen);
void add_verify(CLI::App& app, Command& chosen);
void add_tokenize(CLI::App& app, Command& chosen);
void add_detokenize(CLI::App& app, Command& chosen);
void add_render(CLI::App& app, Command& chosen);

inline void on_chosen(CLI::App& command, Command& chosen, const Command& run) {
  command.callback([&chosen, run] { chosen = run; });
}

// Exit codes. Success is 0.
inline constexpr int kFailed = 1;       // the command ran and its answer is no, or something broke
inline constexpr int kUserMistake = 2;  // a bad flag, file or request
inline constexpr int kInterrupted = 130;

}  // namespace quire::cli
