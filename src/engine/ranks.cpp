#include "engine/ranks.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <set>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "parallel/lone_rank.h"
#include "parallel/processes.h"

namespace quire {

BackendOptions device_options(const EngineConfig& config, int place) {
  return {config.device, config.cpu_isa, config.cpu_threads, config.deterministic, place};
}

void Rank::open(const RankOrder&, RankAnswer& answer) {
  backend_ = make_backend(device_);
  answer.common = format_text("on a CPU {}\n", backend_->device() == DeviceKind::kCpu);
}

void Rank::connect(const RankOrder&, RankAnswer&) {
  const EngineConfig& config = setup_.config;
  comm_ =
      backend_->connect(make_communicator_(*backend_), {config.watchdog, config.disable_custom_all_reduce});
}

void Rank::resolve(const RankOrder& order, RankAnswer& answer) {
  EngineConfig config = setup_.config;
  if (order.argument > 0) config.kv_cache_memory = order.argument;
  runtime_ =
      resolve_config(config, setup_.model.config, *backend_, *comm_, setup_.model.open_formats().get());
  const RuntimeConfig& c = runtime_;
  const ModelSpec& spec = c.spec;
  answer.cache_bytes = c.cache_bytes();
  answer.common = format_text(
      "model {}\nmodel's sizes {}\ndtype {}\nquantization {}{}{}\ncpu-isa {}\nmax-num-seqs "
      "{}\nmax-num-batched-tokens {}\n"
      "max-model-len {}\nblock-size {}\nkv-cache-dtype {}, skip-layers {}\nblocks of swap space "
      "{}\nslots of states {} and {}\nmax-logprobs {}\n"
      "disable-custom-all-reduce {}\ngraphs {}\ndeterministic {}\n",
      setup_.model.config.architecture(),
      format_text("{} layers, {} wide, {}/{} heads of {}, vocabulary {}, windows {}", spec.num_layers,
                  spec.hidden_size, spec.num_heads, spec.num_kv_heads, spec.head_dim, spec.vocab_size,
                  join_text(c.cache.layout.windows, " ")),
      to_string(c.dtype), to_string(c.quantization), c.quantize_head ? " with the head" : "",
      c.weight_only ? " of weights only" : "", resolved_cpu_isa(device_.cpu_isa), c.max_num_seqs,
      c.max_num_batched_tokens, c.max_model_len, c.block_size(), config.kv_cache_dtype,
      in_quotes(config.kv_cache_dtype_skip_layers), c.num_host_blocks, c.num_state_slots,
      c.num_host_state_slots, c.max_logprobs, config.disable_custom_all_reduce, c.use_graphs,
      config.deterministic);
}

void Rank::load(const RankOrder&, RankAnswer&) {
  const std::unique_ptr<WeightSource> weights = setup_.model.open_weights();
  const auto on_layer = [this](std::size_t done, std::size_t total) {
    const EngineConfig& config = setup_.config;
    if (config.stopped && config.stopped()) throw Stopped();
    if (config.on_layer && comm_->rank() == 0) config.on_layer(done, total);
  };
  runner_ =
      std::make_unique<ModelRunner>(*backend_, *comm_, runtime_, setup_.model.config, *weights, on_layer);
  const std::string& architecture = setup_.model.config.architecture();
  const IgnorableTensors& ignorable = find_model_family(architecture).ignorable;
  std::set<std::string> left_out;
  for (const std::string& name : weights->unclaimed()) {
    const auto part = std::ranges::find_if(
        ignorable.beginnings, [&](const std::string& beginning) { return name.starts_with(beginning); });
    if (part != ignorable.beginnings.end())
      left_out.insert(*part);
    else if (std::ranges::none_of(ignorable.endings,
                                  [&](const std::string& ending) { return name.ends_with(ending); }))
      fail("tensor {} belongs to no part of {}", in_quotes(name), architecture);
  }
  if (!left_out.empty() && comm_->rank() == 0)
    log_warning("{} serves text only: the tensors of {} are left out", architecture,
                join_text(left_out, ", "));
}

void Rank::submit(const RankOrder& order, RankAnswer& answer) {
  if (setup_.hooks.poison_blocks) poison_new_blocks(*order.plan);
  if (order.argument == 0)
    runner_->submit(*order.plan);
  else
    answer.ops = runner_->submit_profiled(*order.plan);
}

// Blocks that nothing has been written to for their sequence: those behind its span's first position; and
// slots of fixed states that are not the ones it goes on from.
void Rank::poison_new_blocks(const StepPlan& plan) {
  std::vector<BlockId> blocks, slots;
  const auto num_lanes = runtime_.cache.layout.windows.size();
  for (const SequencePlan& sequence : plan.sequences) {
    for (std::size_t i = 0; i < sequence.new_blocks.size(); ++i) {
      const int row = sequence.first_new_row + static_cast<int>(i / num_lanes);
      const BlockId block = sequence.new_blocks[i];
      if (block != kNoBlock && row * runtime_.block_size() >= sequence.first_position)
        blocks.push_back(block);
    }
    if (sequence.state_to != sequence.state_from) slots.push_back(sequence.state_to);
  }
  runner_->poison(std::move(blocks), std::move(slots));
}

void check_rank_count(const EngineConfig& config) {
  constexpr int kMaxRanks = 1024;
  const int size = config.tensor_parallel_size;
  if (size < 1 || size > kMaxRanks)
    fail("tensor-parallel-size is {}; it must be from 1 to {}", size, kMaxRanks);
}

std::string of_rank(int rank, int size, const std::string& why) {
  return format_text("rank {} of {}: {}", rank, size, why);
}

std::unique_ptr<RankGroup> make_rank_group(const EngineSetup& setup) {
  check_rank_count(setup.config);
  if (setup.config.tensor_parallel_size > 1)
    return started_processes() != nullptr ? meet_rank_processes(setup) : start_rank_threads(setup);
  return std::make_unique<RankGroup>(setup, device_options(setup.config),
                                     [](Backend& backend) { return std::make_unique<SingleRank>(backend); });
}

void RankGroup::open() {
  together({&Rank::open});
  check_common();
  together({&Rank::connect});
}

const RuntimeConfig& RankGroup::resolve() {
  const std::vector<RankAnswer>& answers = together({&Rank::resolve});
  const RuntimeConfig& resolved = own_->config();
  const auto [least, most] = std::ranges::minmax_element(answers, {}, &RankAnswer::cache_bytes);
  if (least->cache_bytes != most->cache_bytes) together({&Rank::resolve, least->cache_bytes});
  check_common();
  const int context =
      setup_.config.max_model_len == 0 ? resolved.spec.max_model_len : setup_.config.max_model_len;
  const int held = resolved.cache.layout.longest(resolved.num_blocks);
  if (held < context)
    log_warning(
        "the KV cache holds {} tokens, fewer than a context of {} (--kv-cache-memory, --max-model-len)", held,
        context);
  return resolved;
}

// Ranks that were started with different flags, or have different models, would compute something else.
void RankGroup::check_common() const {
  for (std::size_t i = 1; i < answers_.size(); ++i) {
    std::istringstream here(answers_[0].common), there(answers_[i].common);
    for (std::string line, other; std::getline(here, line);) {
      std::getline(there, other);
      if (other != line)
        fail("{}", of_rank(static_cast<int>(i), size(), format_text("{}; rank 0 has {}", other, line)));
    }
  }
}

std::optional<OpTimes> RankGroup::submit(StepPlan plan, bool profiled) {
  return together({&Rank::submit, profiled, std::make_shared<const StepPlan>(std::move(plan))})[0].ops;
}

void RankGroup::drop_in_flight() {
  if (!broken_.empty()) fail("{}", broken_);
  together({&Rank::drop}, step_patience());
  reset();
}

// Has every rank do its part; the first error comes out when all have. Where one cannot go on, no other waits
// for it. The answers are by rank, and stay until the next order.
std::vector<RankAnswer>& RankGroup::together(const RankOrder& order, double patience) {
  if (order.plan) step_ = order.plan->id;
  // A plan may be too large to be sent; then nobody has it, and nobody is lost.
  if (size() > 1 && order.plan) send(order);
  answers_.assign(1, {});
  try {
    if (size() > 1 && !order.plan) send(order);
    std::exception_ptr failure;
    bool lost = false;  // it is another's failure
    try {
      own_->execute(order, answers_[0]);
    } catch (const std::exception& e) {
      failure = std::current_exception();
      lost = dynamic_cast<const LostRank*>(&e) != nullptr;
      own_->abandon();
      abandon(e.what());
    }
    for (int rank = 1; rank < size() && order.is_answered(); ++rank)
      answers_.push_back(answer(rank, patience));
    if (failure && !lost) std::rethrow_exception(failure);
    for (const RankAnswer& answer : answers_)
      if (!answer.error.empty()) fail("{}", answer.error);
    if (failure) std::rethrow_exception(failure);
  } catch (const std::exception& e) {
    own_->abandon();
    const std::string why = abandon(e.what());
    if (!survives_failures_ && breaks_ranks(order) && broken_.empty()) broken_ = why;
    throw;
  }
  return answers_;
}

std::string RankGroup::in_its_step(const std::string& why) const {
  return format_text("{} (step {})", why.starts_with("rank ") ? why : of_rank(0, size(), why), step_.load());
}

namespace {

// Of the second time: the first one may prepare something.
double seconds(RankGroup& ranks, const StepPlan& plan) {
  std::chrono::duration<double> taken{};
  for (int round = 0; round < 2; ++round) {
    const auto start = std::chrono::steady_clock::now();
    ranks.submit(plan);
    ranks.collect();
    taken = std::chrono::steady_clock::now() - start;
  }
  return taken.count();
}

StepPlan copy_plan(int num_blocks) {
  StepPlan plan;
  for (BlockId block = 0; block < num_blocks; ++block) {
    plan.saves.push_back({block, block});
    plan.restores.push_back({block, block});
  }
  return plan;
}

// `num_tokens` of a prompt behind `first` others.
StepPlan prefill_plan(int first, int num_tokens, const RuntimeConfig& config) {
  const CacheLayout& layout = config.cache.layout;
  StepPlan plan;
  plan.num_tokens = num_tokens;
  SequencePlan& sequence = plan.sequences.emplace_back();
  sequence.start.emplace();
  sequence.first_position = first;
  sequence.num_tokens = num_tokens;
  sequence.tokens.assign(static_cast<std::size_t>(num_tokens), 0);
  if (config.num_state_slots > 0) sequence.state_to = 0;
  BlockId block = 0;
  for (int row = 0; row < layout.rows_for(first + num_tokens); ++row)
    for (int lane = 0; lane < layout.num_lanes(); ++lane)
      sequence.new_blocks.push_back(row < layout.num_outside(lane, first) ? kNoBlock : block++);
  return plan;
}

}  // namespace

PreemptionCosts measure_preemption_costs(RankGroup& ranks, const RuntimeConfig& config) {
  constexpr int kMostBlocks = 256, kFirstTokens = 32, kMostTokens = 2048;
  constexpr double kEnough = 0.02;  // seconds
  PreemptionCosts costs;
  costs.blocks_of_states = static_cast<int>(config.cache.state_bytes() / config.block_bytes());
  const int num_blocks = std::min({kMostBlocks, config.num_host_blocks, config.num_blocks});
  costs.block_copied = seconds(ranks, copy_plan(num_blocks)) / num_blocks;

  const auto capacity =
      static_cast<int>(std::min(config.cached_tokens(), std::int64_t{config.max_model_len}));
  const int most = std::min({kMostTokens, config.max_num_batched_tokens, capacity});
  int num_tokens = std::min(kFirstTokens, most);
  double alone = seconds(ranks, prefill_plan(0, num_tokens, config));
  while (alone < kEnough && num_tokens < most) {
    num_tokens = std::min(2 * num_tokens, most);
    alone = seconds(ranks, prefill_plan(0, num_tokens, config));
  }
  const int room = capacity - num_tokens, before = room >= num_tokens ? room : 0;
  costs.set_computing(num_tokens, alone, before,
                      before > 0 ? seconds(ranks, prefill_plan(before, num_tokens, config)) : 0);
  log_info(
      "preemption: a block to the host and back takes {:.1f} us, a token computed again {:.1f} us, {:.1f} us "
      "more after {} others",
      1e6 * costs.block_copied, 1e6 * costs.token, 1e6 * costs.pair * before, before);
  return costs;
}

}  // namespace quire
