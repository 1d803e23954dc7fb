#include "engine/rank.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"

namespace quire {

void Rank::resolve(std::size_t kv_cache_memory) {
  EngineConfig config = config_;
  if (kv_cache_memory > 0) config.kv_cache_memory = kv_cache_memory;
  runtime_ = resolve_config(config, model_.config, *backend_, *comm_, model_.open_formats().get());
}

void Rank::warn_of_small_cache() const {
  const int context = config_.max_model_len == 0 ? runtime_.spec.max_model_len : config_.max_model_len;
  const int held = runtime_.cache.layout.longest(runtime_.num_blocks);
  if (held >= context) return;
  log_warning("the KV cache holds {} tokens, fewer than a context of {} (--kv-cache-memory, --max-model-len)",
              held, context);
}

std::string Rank::common() const {
  if (runtime_.num_blocks == 0) return format_text("on a CPU {}\n", backend_->device() == DeviceKind::kCpu);
  const RuntimeConfig& c = runtime_;
  const ModelSpec& spec = c.spec;
  return format_text(
      "model {}\nmodel's sizes {}\ndtype {}\nquantization {}{}\ncpu-isa {}\nmax-num-seqs "
      "{}\nmax-num-batched-tokens {}\n"
      "max-model-len {}\nblock-size {}\nblocks of swap space {}\nmax-logprobs {}\n"
      "disable-custom-all-reduce {}\ngraphs {}\ndeterministic {}\n",
      model_.config.architecture(),
      format_text("{} layers, {} wide, {}/{} heads of {}, vocabulary {}, windows {}", spec.num_layers,
                  spec.hidden_size, spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.vocab_size,
                  join_text(c.cache.layout.windows, " ")),
      to_string(c.dtype), to_string(c.quantization), c.quantize_head ? " with the head" : "",
      resolved_cpu_isa(device_.cpu_isa), c.max_num_seqs, c.max_num_batched_tokens, c.max_model_len,
      c.block_size(), c.num_host_blocks, c.max_logprobs, config_.disable_custom_all_reduce, c.use_graphs,
      config_.deterministic);
}

void Rank::load() {
  const std::unique_ptr<WeightSource> weights = model_.open_weights();
  runner_ = std::make_unique<ModelRunner>(*backend_, *comm_, runtime_, model_.config, *weights);
  const std::string& architecture = model_.config.architecture();
  const IgnorableTensors& ignorable = find_model_family(architecture).ignorable;
  std::set<std::string> left_out;
  for (const std::string& name : weights->unclaimed()) {
    const auto begins =
        std::find_if(ignorable.beginnings.begin(), ignorable.beginnings.end(),
                     [&](const std::string& beginning) { return name.starts_with(beginning); });
    if (begins != ignorable.beginnings.end()) {
      left_out.insert(*begins);
      continue;
    }
    const bool ignored = std::any_of(ignorable.endings.begin(), ignorable.endings.end(),
                                     [&](const std::string& ending) { return name.ends_with(ending); });
    if (!ignored) fail("tensor {} belongs to no part of {}", in_quotes(name), architecture);
  }
  if (!left_out.empty() && comm_->rank() == 0)
    log_warning("{} serves text only: the tensors of {} are left out", architecture,
                join_text(std::vector(left_out.begin(), left_out.end()), ", "));
}

// Blocks that nothing has been written to for their sequence: those behind its span's first position.
void Rank::poison_new_blocks(const StepPlan& plan) {
  std::vector<BlockId> blocks;
  const auto num_lanes = runtime_.cache.layout.windows.size();
  for (const SequencePlan& sequence : plan.sequences) {
    for (std::size_t i = 0; i < sequence.new_blocks.size(); ++i) {
      const int row = sequence.first_new_row + static_cast<int>(i / num_lanes);
      const BlockId block = sequence.new_blocks[i];
      if (block != kNoBlock && row * runtime_.block_size() >= sequence.first_position)
        blocks.push_back(block);
    }
  }
  runner_->poison(std::move(blocks));
}

RankAnswer Rank::execute(const RankOrder& order) {
  using Kind = RankOrder::Kind;
  if (order.has_plan() && poison_blocks_) poison_new_blocks(*order.plan);
  RankAnswer answer;
  switch (order.kind) {
    case Kind::kOpen:
      backend_ = make_backend(device_);
      answer.common = common();
      break;
    case Kind::kConnect:
      comm_ = backend_->connect(connect_(*backend_), {config_.watchdog, config_.disable_custom_all_reduce});
      break;
    case Kind::kResolve:
      resolve(order.kv_cache_memory);
      answer.num_blocks = static_cast<std::uint64_t>(runtime_.num_blocks);
      answer.common = common();
      break;
    case Kind::kLoad:
      load();
      break;
    case Kind::kCaptureGraphs:
      runner_->capture_graphs();
      break;
    case Kind::kCollect:
      answer.result = runner_->collect();
      break;
    case Kind::kDrop:
      runner_->drop_in_flight();
      break;
    case Kind::kSubmit:
      runner_->submit(*order.plan);
      break;
    case Kind::kSubmitProfiled:
      answer.ops = runner_->submit_profiled(*order.plan);
      break;
    case Kind::kStop:
      QUIRE_CHECK(false, "who runs the rank stops it");
  }
  return answer;
}

}  // namespace quire
