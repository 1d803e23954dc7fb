#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <set>
#include <string>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "cli/options.h"

namespace quire::cli {
namespace {

// What a scalar stands for where its text is not all: a boolean in any of YAML's spellings, a number, null.
OrderedJson scalar_json(const YAML::Node& node) {
  const std::string& text = node.Scalar();
  bool flag = false;
  if (node.Tag() == "!") return text;  // it is in quotes
  if (text.size() > 1 && YAML::convert<bool>::decode(node, flag)) return flag;
  return OrderedJson::accept(text) ? OrderedJson::parse(text) : OrderedJson(text);
}

// Adds up the bytes of what stands there. An alias may stand within what it means, or ten times in what
// stands ten times in something else.
void check_size(const YAML::Node& node, std::size_t& size, int depth = 0) {
  constexpr std::size_t kMaxSize = std::size_t{64} << 20, kValueSize = 64;
  if (depth > 32) fail("it is nested deeper than 32");
  size += kValueSize + node.Scalar().size();
  if (size > kMaxSize) fail("its aliases make it larger than {} bytes", kMaxSize);
  for (const auto& entry : node) {
    if (node.IsMap()) check_size(entry.first, size, depth + 1);
    check_size(node.IsMap() ? entry.second : entry, size, depth + 1);
  }
}

OrderedJson to_json(const YAML::Node& node) {
  OrderedJson json = node.IsMap() ? OrderedJson::object() : OrderedJson::array();
  if (node.IsScalar()) return scalar_json(node);
  if (node.IsNull()) return nullptr;
  for (const auto& entry : node) {
    if (!node.IsMap())
      json.push_back(to_json(entry));
    else if (!json.emplace(entry.first.Scalar(), to_json(entry.second)).second)
      fail("{} is given twice", in_quotes(entry.first.Scalar()));
  }
  return json;
}

// As it would stand on the command line.
std::string argument(const YAML::Node& node) {
  if (!node.IsScalar()) return to_json(node).dump();
  const OrderedJson value = scalar_json(node);
  return value.is_boolean() ? value.dump() : node.Scalar();
}

void take(CLI::Option& option, const std::string& name, const YAML::Node& value) {
  if (value.IsNull() || option.count() > 0) return;
  for (const CLI::Option* other : option.get_excludes())
    if (other->count() > 0) return;  // as with model where there is MODEL
  std::vector<std::string> arguments;
  if (value.IsSequence())
    for (const YAML::Node& entry : value) arguments.push_back(argument(entry));
  else
    arguments.push_back(argument(value));
  if (arguments.empty()) return;
  if (option.get_expected_min() == 0) arguments = {option.get_flag_value(name, arguments.front())};
  option.add_result(arguments);
  option.run_callback();
}

void read_config_file(CLI::App& command, const std::string& path) {
  const std::string text = read_text_file(path, std::size_t{1} << 20);
  int line = 1;
  try {
    const YAML::Node file = YAML::Load(text);
    if (!file.IsMap()) fail("it must have lines such as max-model-len: 4096");
    std::set<std::string> names;
    std::size_t size = 0;
    for (const auto& entry : file) {
      line = entry.first.Mark().line + 1;
      check_size(entry.second, size);
      std::string name = entry.first.Scalar();
      std::ranges::replace(name, '_', '-');
      CLI::Option* const option = command.get_option_no_throw("--" + name);
      if (option == nullptr || name == "help" || name == "config")
        fail("{} is no flag of {}{}", in_quotes(name), command.get_name(), nearest_flag(command, name));
      if (!names.insert(name).second) fail("{} is given twice", in_quotes(name));
      take(*option, name, entry.second);
    }
  } catch (const YAML::Exception& e) {
    fail("{}, line {}: {}", path, e.mark.line + 1, e.msg);
  } catch (const std::runtime_error& e) {  // also of a value that the flag does not take
    fail("{}, line {}: {}", path, line, e.what());
  }
}

struct TakenFlag {
  const char* names;
  const char* value;  // that is taken: empty: it has none; *: any
  const char* instead;
};

constexpr TakenFlag kTaken[] = {
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
};

}  // namespace

void add_config_file(Flags flags) {
  flags.command
      .add_option_function<std::string>(
          "--config",
          [&command = flags.command](const std::string& path) { read_config_file(command, path); },
          "YAML whose keys are flags, with or without dashes; the command line wins")
      ->type_name("FILE");
}

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
