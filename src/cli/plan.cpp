#include "base/json.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output.h"
#include "engine/model_files.h"
#include "inspect/capacity.h"

namespace quire::cli {
namespace {

std::string mib(std::size_t bytes) {
  return format_text("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
}

void print_table(const Capacity& c) {
  print_text(stdout, "{}, {}, on {}\n", c.architecture, to_string(c.config.dtype), c.device);
  if (c.ranks > 1) print_text(stdout, "each of {} ranks:\n", c.ranks);
  print_text(stdout, "\n");
  print_text(stdout, "weights    {:>14}\n", mib(c.plan.weights));
  print_text(stdout, "workspace  {:>14}   steps of {} tokens, {} sequences of {} tokens\n",
             mib(c.plan.workspace), c.config.max_num_batched_tokens, c.config.max_num_seqs,
             c.config.max_model_len);
  if (c.plan.connections > 0)
    print_text(stdout, "inboxes    {:>14}   of the other ranks' parts of sums\n", mib(c.plan.connections));
  print_text(stdout, "host       {:>14}\n", mib(c.plan.host));
  print_text(stdout, "KV cache   {:>14}   {} tokens in blocks of {}, {} bytes a token\n",
             mib(c.plan.kv_cache), c.config.cached_tokens(), c.config.block_size(), c.kv_bytes_per_token());
  if (const std::vector<Capacity::Group> groups = c.groups(); groups.size() > 1) {
    for (const Capacity::Group& group : groups)
      print_text(stdout, "  {:>3} layers {:>12}   of a sequence of {} tokens, {}\n", group.num_layers,
                 mib(static_cast<std::size_t>(group.bytes_held)), c.config.max_model_len,
                 group.window == 0
                     ? "which they hold whole"
                     : format_text("of which they hold a window of {}, and a step", group.window));
    print_text(stdout, "  {:.1f} % of it idle\n", 100 * c.config.cache.idle_share());
  }
  if (c.state_slots_bytes() > 0)
    print_text(stdout, "  states   {:>14}   of it, {} slots of {}: sequences that run, and checkpoints\n",
               mib(c.state_slots_bytes()), c.config.num_state_slots, mib(c.config.cache.state_bytes()));
  if (c.plan.swap_space > 0)
    print_text(stdout, "swap space {:>14}   of the host, beside the total\n", mib(c.plan.swap_space));
  print_text(stdout, "total      {:>14}   {} {}\n\n", mib(c.plan.total()),
             c.fits() ? "fits in" : "does not fit in", mib(c.memory));
  print_text(stdout, "{} has room for a KV cache of {} tokens (--kv-cache-memory {})\n\n", mib(c.memory),
             c.tokens, c.kv_cache);
  print_text(stdout, "length  sequences\n");
  for (const Capacity::Row& row : c.rows) print_text(stdout, "{:>6}  {:>9}\n", row.length, row.sequences);
}

void print_json(const Capacity& c) {
  OrderedJson rows = OrderedJson::array();
  for (const Capacity::Row& row : c.rows)
    rows.push_back({{"length", row.length}, {"sequences", row.sequences}});
  OrderedJson groups = OrderedJson::array();
  for (const Capacity::Group& group : c.groups())
    groups.push_back({{"layers", group.num_layers},
                      {"window", group.window},
                      {"lanes", group.num_lanes},
                      {"bytes_held", group.bytes_held}});
  print_json_line({{"architecture", c.architecture},
                   {"dtype", to_string(c.config.dtype)},
                   {"device", c.device},
                   {"ranks", c.ranks},
                   {"weights_bytes", c.plan.weights},
                   {"workspace_bytes", c.plan.workspace},
                   {"inbox_bytes", c.plan.connections},
                   {"host_bytes", c.plan.host},
                   {"kv_cache_bytes", c.plan.kv_cache},
                   {"state_slots", c.config.num_state_slots},
                   {"state_slot_bytes", c.config.cache.state_bytes()},
                   {"swap_space_bytes", c.plan.swap_space},
                   {"kv_bytes_per_token", c.kv_bytes_per_token()},
                   {"kv_cache_groups", groups},
                   {"kv_cache_idle_share", c.config.cache.idle_share()},
                   {"total_bytes", c.plan.total()},
                   {"memory_bytes", c.memory},
                   {"fits", c.fits()},
                   {"capacity", {{"kv_cache_bytes", c.kv_cache}, {"tokens", c.tokens}, {"lengths", rows}}}});
}

struct Plan : EngineOptions {
  std::size_t memory = 0;
  bool json = false;

  void add_to(Flags flags) {
    EngineOptions::add_to(flags);
    add_shape_to(flags);
    flags.bytes("--memory", memory, "bytes, or with a unit such as 24GiB (default: this machine's)");
    flags.on("--json", json, "print one JSON object");
  }

  int run() {
    config.model = source.find(config.model, /*with_weights=*/false);
    if (shape) return show(plan_capacity(config, shape_config(*shape), memory));
    if (const auto gguf = find_gguf(config.model); !gguf.empty()) {
      const ModelFiles files = open_gguf(gguf);
      return show(plan_capacity(config, files.config, memory, files.open_formats().get()));
    }
    const std::filesystem::path directory = find_model_directory(config.model);
    const ModelConfig model = read_config(directory);
    return show(plan_capacity(config, model, memory, open_formats(directory, model).get()));
  }

 private:
  int show(const Capacity& capacity) const {
    json ? print_json(capacity) : print_table(capacity);
    return capacity.fits() ? 0 : kFailed;
  }
};

}  // namespace

void add_plan(CLI::App& app, Command& chosen) {
  add_command<Plan>(app, chosen, "plan", "Show the memory a model takes, without loading it");
}

}  // namespace quire::cli
