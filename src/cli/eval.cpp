#include "base/json.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output.h"
#include "inspect/perplexity.h"

namespace quire::cli {
namespace {

void print_table(const PerplexityResult& r) {
  print_figure(
      "PPL", figure(r.perplexity, 4),
      format_text("of {} tokens, in windows of {} that begin {} apart", r.num_tokens, r.context, r.stride));
  if (!r.against) return;
  print_figure("against", figure(r.against->perplexity, 4),
               format_text("the reference's; ratio {}", figure(r.perplexity / r.against->perplexity, 5)));
  print_figure("KL", figure(r.against->kl_mean, 6),
               format_text("nats mean, {} p99", figure(r.against->kl_p99, 6)));
  print_figure("top-1", figure(100 * r.against->top1_agreement, 2),
               "% of tokens: the same one is most likely");
}

void print_json(const PerplexityResult& r) {
  OrderedJson object = {{"perplexity", r.perplexity},
                        {"tokens", r.num_tokens},
                        {"context", r.context},
                        {"stride", r.stride},
                        {"weights_bytes", r.weight_bytes}};
  if (r.against)
    object["against"] = {{"perplexity", r.against->perplexity},
                         {"ratio", r.perplexity / r.against->perplexity},
                         {"kl_mean", r.against->kl_mean},
                         {"kl_p99", r.against->kl_p99},
                         {"top1_agreement", r.against->top1_agreement}};
  print_json_line(object);
}

struct Perplexity : EngineOptions {
  PerplexityOptions options;
  std::optional<std::string> against, against_quantization, against_dtype;
  bool json = false;

  void add_to(Flags flags) {
    EngineOptions::add_to(flags);
    flags.value("--text", options.text, "a file")->required();
    flags.value("--context", options.context,
                "tokens of a window (default: 2048, or the longest sequence where that is less)");
    flags.value("--stride", options.stride,
                "tokens from one window's beginning to the next one's (default: half of --context)");
    flags.value("--max-tokens", options.max_tokens, "of the text, the first ones (default: all)");
    flags.value(
        "--against", against,
        "a reference, as MODEL, its KV cache as its --dtype: KL divergence from it, and the share of tokens "
        "where the same one is most likely (with one of the next two, default: MODEL)");
    flags.value("--against-quantization", against_quantization,
                "the reference's --quantization (default: none)");
    flags.value("--against-dtype", against_dtype, "the reference's --dtype (default: --dtype)");
    flags.on("--json", json, "print one JSON object");
  }
  int run() {
    refuse_several_processes("eval");
    config.model = source.find(config.model);
    options.engine = config;
    if (against || against_quantization || against_dtype) {
      EngineConfig& reference = options.against.emplace(config);
      if (against) reference.model = source.find(*against);
      reference.quantization = against_quantization.value_or("none");
      reference.quantize_head = config.quantize_head && reference.quantization != "none";
      reference.dtype = against_dtype.value_or(config.dtype);
      reference.kv_cache_dtype = "auto";
      reference.kv_cache_dtype_skip_layers.clear();
      reference.on_layer = {};  // one bar is enough
    }
    options.on_progress = progress_bar("tokens");
    const auto perplexity = measure_perplexity(options);
    json ? print_json(perplexity) : print_table(perplexity);
    return 0;
  }
};

}  // namespace

void add_eval(CLI::App& app, Command& chosen) {
  CLI::App* const eval = app.add_subcommand("eval", "Measure how good a model or a format is");
  eval->require_subcommand(1);
  add_command<Perplexity>(*eval, chosen, "perplexity",
                          "How well a model predicts a text, and how far it is from another");
}

}  // namespace quire::cli
