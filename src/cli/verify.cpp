#include "inspect/verify.h"

#include "base/error.h"
#include "base/json.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output.h"
#include "inspect/checksums.h"

namespace quire::cli {
namespace {

void print_result_line(const VerifyResult& r) {
  const std::string way = r.chunk_size == 0  ? "in one chunk"
                          : r.chunk_size > 1 ? format_text("in chunks of {}", r.chunk_size)
                          : r.side_by_side == 1
                              ? "token by token"
                              : format_text("token by token, {} side by side", r.side_by_side);
  const std::string rerouted =
      r.rerouted == 0 ? "" : format_text(" but at {} positions of other experts", r.rerouted);
  const std::string excused = r.argmax_excused == 0 ? "" : format_text(" ({} excused)", r.argmax_excused);
  const std::string rms =
      r.rms_limit == 0 ? "" : format_text(" and {:.1e} of their norm (limit {:.1e})", r.rms, r.rms_limit);
  print_text(
      stdout,
      "{} prompt {} of {} tokens, {}: logits differ by {:.1e} (limit {:.1e}){}{}, argmax equal at {} of "
      "{} steps{}\n",
      r.passed() ? "ok    " : "FAILED", r.prompt, r.num_tokens, way, r.error, r.limit, rms, rerouted,
      r.argmax_equal, r.num_steps, excused);
}

void print_result_json(const VerifyResult& r) {
  print_json_line({{"prompt", r.prompt},
                   {"prompt_tokens", r.num_tokens},
                   {"chunk_size", r.chunk_size},
                   {"side_by_side", r.side_by_side},
                   {"error", r.error},
                   {"limit", r.limit},
                   {"rms", r.rms},
                   {"rms_limit", r.rms_limit},
                   {"rerouted", r.rerouted},
                   {"argmax_equal", r.argmax_equal},
                   {"argmax_excused", r.argmax_excused},
                   {"steps", r.num_steps},
                   {"passed", r.passed()}});
}

struct Verify : EngineOptions {
  bool json = false;
  bool checksums = false;

  void add_to(Flags flags) {
    EngineOptions::add_to(flags);
    flags.command.get_option("MODEL")->required()->description(
        "checkpoint directory, or hub id, that has expected.safetensors, or a .gguf file beside one");
    flags.on("--json", json, "print one JSON object a prompt");
    flags.on("--checksums", checksums,
             "compare its files with what quire checksum wrote beside them, and nothing else");
  }
  int run() {
    refuse_several_processes("verify");
    config.model = source.find(config.model);
    if (checksums) return check();
    return verify(config, json ? print_result_json : print_result_line) ? 0 : kFailed;
  }

 private:
  int check() const {
    const std::vector<std::string> wrong = check_checksums(config.model);
    for (const std::string& line : wrong) print_text(stdout, "FAILED {}\n", line);
    if (wrong.empty()) print_text(stdout, "ok     {}\n", manifest_path(config.model).string());
    return wrong.empty() ? 0 : kFailed;
  }
};

struct Checksum {
  std::string model;
  ModelSource source;

  void add_to(Flags flags) {
    flags.value("MODEL", model, "checkpoint directory, hub id or .gguf file")->required();
    add_source_options(flags, source);
  }
  int run() const {
    const std::string found = source.find(model);
    const std::size_t count = write_checksums(found);
    print_text(stdout, "{}: {} files\n", manifest_path(found).string(), count);
    return 0;
  }
};

}  // namespace

void add_verify(CLI::App& app, Command& chosen) {
  add_command<Verify>(app, chosen, "verify", "Compare a model with its expected.safetensors");
  add_command<Checksum>(app, chosen, "checksum",
                        "Write the SHA-256 of a model's files, for verify --checksums and sha256sum -c");
}

}  // namespace quire::cli
