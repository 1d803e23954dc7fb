#include "base/error.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output.h"
#include "inspect/quantize_model.h"

namespace quire::cli {
namespace {

struct Quantize {
  std::string model, out, format;
  ModelSource source;
  bool quantize_head = false;

  int run() const;
};

int Quantize::run() const {
  refuse_several_processes("quantize");
  QuantizeOptions options;
  options.model = source.find(model);
  options.out = out;
  options.format = parse_quantization(format);
  options.quantize_head = quantize_head;
  options.on_tensor = progress_bar("tensors");
  const InterruptFlag interrupt;
  options.stopped = [] { return InterruptFlag::raised().load(); };
  const auto mb = [](std::uint64_t bytes) { return static_cast<double>(bytes) / 1e6; };
  try {
    const QuantizedSize size = quantize_model(options);
    print_text(stdout, "{}: {} matrices in {}; {:.1f} MB, of {:.1f}\n", out, size.num_matrices, format,
               mb(size.bytes), mb(size.bytes_before));
  } catch (const Stopped&) {
    options.on_tensor = {};  // its line ends
    print_text(stderr, "quire: stopped; nothing is left of {}\n", out);
    return kInterrupted;
  }
  return 0;
}

}  // namespace

void add_quantize(CLI::App& app, Command& chosen) {
  auto [flags, quantize] = add_command<Quantize>(
      app, chosen, "quantize", "Write a checkpoint whose weights are codes, as --quantization makes them");
  flags.value("MODEL", quantize.model, "checkpoint directory of 16-bit weights, or a hub id")->required();
  flags.value("OUT", quantize.out, "directory to write, which must not have files")->required();
  flags
      .value("--format", quantize.format,
             "fp8, int8 or int4 (as compressed-tensors has them), or nf4 (as bitsandbytes)",
             CLI::IsMember({"fp8", "int8", "int4", "nf4"}))
      ->required();
  flags.on("--quantize-head", quantize.quantize_head, "the head, too, where it is no embedding");
  add_source_options(flags, quantize.source);
}

}  // namespace quire::cli
