#pragma once

#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace quire::testing {

struct ProgramResult {
  int code = 0;  // exit code, or 128 + the signal
  std::string out;
  std::string err;
};

// Runs a shell command with this standard input.
inline ProgramResult run_shell(const std::string& script, const std::string& input = "") {
  char pattern[] = "/tmp/quire_cli_XXXXXX";
  const std::filesystem::path directory = mkdtemp(pattern);
  std::ofstream(directory / "in") << input;
  const std::string command = "( " + script + " ) <" + (directory / "in").string() + " >" +
                              (directory / "out").string() + " 2>" + (directory / "err").string();
  const int status = std::system(command.c_str());
  const auto read = [&](const char* name) {
    std::ostringstream text;
    text << std::ifstream(directory / name).rdbuf();
    return text.str();
  };
  ProgramResult result{WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read("out"),
                       read("err")};
  std::filesystem::remove_all(directory);
  return result;
}

// Runs `quire ARGUMENTS`.
inline ProgramResult run_quire(const std::string& arguments, const std::string& input = "") {
  return run_shell(QUIRE_PROGRAM " " + arguments, input);
}

}  // namespace quire::testing
