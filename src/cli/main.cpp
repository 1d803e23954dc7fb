#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <new>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "cli/commands.h"
#include "cli/options.h"

namespace {

using namespace quire::cli;

// Where standard input, output or error is closed, the next file or client would take its place, and be
// written to. What stands there instead cannot be written to either, so that errors are still noticed.
void occupy_standard_descriptors() {
  int fd = -1;
  do fd = ::open("/dev/null", O_RDONLY);
  while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) ::close(fd);
}

const std::terminate_handler other_handler = std::get_terminate();

// Where an exception may not leave, such as some of CLI11's functions, the end of memory is the end of the
// process.
[[noreturn]] void end_process() {
  try {
    if (const std::exception_ptr thrown = std::current_exception()) std::rethrow_exception(thrown);
  } catch (const std::bad_alloc& e) {
    std::fprintf(stderr, "quire: %s\n", quire::what_of(e));
    std::_Exit(kFailed);
  } catch (...) {
  }
  other_handler();
  std::abort();
}

// What the command line has, the last one first. As vLLM's, serve takes --max_num_seqs for --max-num-seqs.
std::vector<std::string> read_arguments(int argc, char** argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  const auto command =
      std::ranges::find_if(arguments, [](const std::string& argument) { return !argument.starts_with('-'); });
  const bool is_serve = command != arguments.end() && *command == "serve";
  for (std::string& argument : arguments) {
    const std::size_t end = std::min(argument.find('='), argument.size());
    if (is_serve && argument.starts_with("--"))
      std::replace(argument.begin(), argument.begin() + static_cast<std::ptrdiff_t>(end), '_', '-');
  }
  std::ranges::reverse(arguments);
  return arguments;
}

// The flag most like the first one that a command does not know.
std::string suggestion(const CLI::App& app) {
  const CLI::App* command = &app;
  while (!command->get_subcommands().empty()) command = command->get_subcommands().back();
  for (const std::string& unknown : app.remaining(true))
    if (unknown.starts_with("--")) return nearest_flag(*command, unknown.substr(2, unknown.find('=') - 2));
  return {};
}

int run(int argc, char** argv) {
  CLI::App app("Quire: an LLM inference and serving engine", "quire");
  app.require_subcommand(1);
  app.set_version_flag("--version", "quire " QUIRE_VERSION);
  app.add_flag_callback(
      "-v,--verbose", [] { quire::set_log_level(quire::LogLevel::kInfo); }, "say on stderr what is done");
  Command chosen;
  for (const auto add : {add_chat, add_generate, add_serve, add_bench, add_simulate, add_plan, add_quantize,
                         add_doctor, add_verify, add_eval, add_replay, add_line_commands})
    add(app, chosen);
  const auto commands = app.get_subcommands([](CLI::App*) { return true; });
  const auto is_named = [&](const CLI::App* command) { return command->get_name() == argv[1]; };
  if (argc > 1 && argv[1][0] != '-' && std::ranges::none_of(commands, is_named))
    quire::fail("{} is no command (--help lists what there is)", quire::in_quotes(argv[1]));
  try {
    app.parse(read_arguments(argc, argv));
  } catch (const CLI::Success& e) {  // --help, --version
    return app.exit(e);
  } catch (const CLI::ExtrasError& e) {
    quire::print_text(stderr, "quire: {}{} (--help lists what there is)\n", e.what(), suggestion(app));
    return kUserMistake;
  } catch (const CLI::ParseError& e) {
    quire::print_text(stderr, "quire: {} (--help lists what there is)\n", e.what());
    return kUserMistake;
  }
  return chosen();
}

}  // namespace

int main(int argc, char** argv) {
  std::set_terminate(end_process);
  occupy_standard_descriptors();
  try {
    const int code = run(argc, argv);
    if (std::fflush(stdout) != 0 || !std::cout.flush()) quire::fail("cannot write to standard output");
    return code;
  } catch (const quire::Error& e) {
    std::string message = e.what();  // a chat template's may have several lines
    std::ranges::replace(message, '\n', ' ');
    quire::print_text(stderr, "quire: {}\n", message);
    return kUserMistake;
  } catch (const quire::Stopped&) {
    quire::print_text(stderr, "quire: stopped; what was downloaded is kept for the next time\n");
    return kInterrupted;
  } catch (const std::exception& e) {
    quire::print_text(stderr, "quire: {}\n", quire::what_of(e));
    return kFailed;
  }
}
