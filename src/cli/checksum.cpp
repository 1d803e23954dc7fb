#include "cli/commands.h"
#include "cli/model_source.h"
#include "cli/output.h"
#include "inspect/checksums.h"

namespace quire::cli {
namespace {

struct Checksum {
  std::string model;
  ModelSource source;

  int run() const {
    const std::string found = source.find(model);
    const std::size_t count = write_checksums(found);
    print_text(stdout, "{}: {} files\n", manifest_path(found).string(), count);
    return 0;
  }
};

}  // namespace

void add_checksum(CLI::App& app, Command& chosen) {
  auto [flags, checksum] =
      add_command<Checksum>(app, chosen, "checksum",
                            "Write the SHA-256 of a model's files, for verify --checksums and sha256sum -c");
  flags.value("MODEL", checksum.model, "checkpoint directory, hub id or .gguf file")->required();
  add_source_options(flags, checksum.source);
}

}  // namespace quire::cli
