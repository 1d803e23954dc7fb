#include "base/error.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output.h"
#include "inspect/quantize_model.h"

namespace quire::cli {
namespace {

struct Quantize : QuantizeOptions {
  std::string format_name;
  ModelSource source;

  void add_to(Flags flags) {
    flags.value("MODEL", model, "checkpoint directory of plain weights, or a hub id")->required();
    flags.value("OUT", out, "directory to write, which must not have files")->required();
    flags
        .value("--format", format_name, "fp8, int8 or int4 (compressed-tensors), nf4 (bitsandbytes)",
               CLI::IsMember({"fp8", "int8", "int4", "nf4"}))
        ->required();
    flags.on("--quantize-head", quantize_head, "the head, too, where it is no embedding");
    add_source_options(flags, source);
  }
  int run() {
    refuse_several_processes("quantize");
    out = output_directory(out);  // before anything is downloaded
    model = source.find(model);
    format = parse_quantization(format_name);
    on_tensor = progress_bar("tensors");
    const InterruptFlag interrupt({SIGINT, SIGTERM, SIGHUP});
    stopped = InterruptFlag::is_raised;
    try {
      const QuantizedSize size = quantize_model(*this);
      print_text(stdout, "{}: {} matrices in {}; {:.1f} MB, of {:.1f}\n", out.string(), size.num_matrices,
                 format_name, static_cast<double>(size.bytes) / 1e6,
                 static_cast<double>(size.bytes_before) / 1e6);
      return 0;
    } catch (const Stopped&) {
      on_tensor = {};  // its line ends
      print_text(stderr, "quire: stopped; nothing is left of {}\n", out.string());
      return kInterrupted;
    }
  }
};

}  // namespace

void add_quantize(CLI::App& app, Command& chosen) {
  add_command<Quantize>(app, chosen, "quantize",
                        "Write a checkpoint whose weights are codes, as --quantization makes them");
}

}  // namespace quire::cli
