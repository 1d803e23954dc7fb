#include "engine/engine.h"

#include <algorithm>

#include "backends/registry.h"
#include "base/log.h"
#include "engine/bundled_model.h"
#include "engine/sampling_state.h"
#include "ops/philox.h"
#include "parallel/single_rank.h"

namespace quire {
namespace {

std::filesystem::path resolve_model_directory(const std::string& model) {
  if (model.empty()) return bundled_model_directory();
  if (!std::filesystem::is_directory(model))
    fail("{}: no such directory; a model is a Hugging Face checkpoint directory", model);
  return model;
}

// The seed of a request that brings none: a function of the engine's seed and the request's number.
std::uint64_t request_seed(std::uint64_t engine_seed, RequestId id) {
  const auto bits =
      philox4x32(engine_seed, {static_cast<std::uint32_t>(id), static_cast<std::uint32_t>(id >> 32), 0, 1});
  return std::uint64_t{bits[0]} << 32 | bits[1];
}

}  // namespace

Engine::Engine(const EngineConfig& config)
    : directory_(resolve_model_directory(config.model)),
      generation_config_(read_generation_config(directory_)),
      seed_(config.seed),
      backend_(make_backend({config.device, config.cpu_isa, config.cpu_threads})),
      comm_(std::make_unique<SingleRank>(*backend_)) {
  const ModelConfig model = ModelConfig::from_file(directory_ / "config.json");
  config_ = resolve_config(config, model, *backend_, *comm_);
  read_eos_token_ids(model);
  if (const auto path = directory_ / "tokenizer.json"; std::filesystem::exists(path)) {
    tokenizer_.emplace(Tokenizer::from_file(path));
  }
  load_weights(model);
  scheduler_ =
      std::make_unique<Scheduler>(SchedulerConfig{.max_num_seqs = config_.max_num_seqs,
                                                  .max_num_batched_tokens = config_.max_num_batched_tokens,
                                                  .max_model_len = config_.max_model_len,
                                                  .block_size = config_.block_size,
                                                  .num_blocks = config_.num_blocks,
                                                  .enable_prefix_caching = config.enable_prefix_caching,
                                                  .hash_seed = {}});
  outputs_ = std::make_unique<OutputProcessor>(tokenizer_ ? &*tokenizer_ : nullptr, [this](RequestId id) {
    post(Abort{id, false});
  });
  thread_ = std::thread([this] { run(); });
}

Engine::~Engine() {
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  wake_.notify_one();
  thread_.join();
  outputs_.reset();  // what it still delivers may post to this engine
}

void Engine::load_weights(const ModelConfig& model) {
  Checkpoint checkpoint(directory_);
  checkpoint.set_optional_prefix("model.");
  runner_ = std::make_unique<ModelRunner>(*backend_, *comm_, config_, model, checkpoint);
  const auto& ignorable = find_model_family(model.architecture()).ignorable_endings;
  for (const std::string& name : checkpoint.unclaimed()) {
    const bool ignored = std::any_of(ignorable.begin(), ignorable.end(),
                                     [&](const std::string& ending) { return name.ends_with(ending); });
    if (!ignored)
      fail("{}: tensor {} belongs to no part of {}", directory_.string(), name, model.architecture());
  }
}

void Engine::read_eos_token_ids(const ModelConfig& model) {
  eos_token_ids_ = generation_config_.eos_token_ids;
  if (eos_token_ids_.empty()) eos_token_ids_ = model.eos_token_ids();
  const auto beyond = std::find_if(eos_token_ids_.begin(), eos_token_ids_.end(),
                                   [this](TokenId id) { return id < 0 || id >= config_.spec.vocab_size; });
  if (beyond != eos_token_ids_.end()) {
    fail("{}: eos_token_id {} lies outside the vocabulary of {}", directory_.string(), *beyond,
         config_.spec.vocab_size);
  }
  constexpr std::size_t kMaxEos = 128;
  if (eos_token_ids_.size() > kMaxEos)
    fail("{}: more than {} values of eos_token_id", directory_.string(), kMaxEos);
}

const Tokenizer& Engine::tokenizer() const {
  if (!tokenizer_) fail("{}: no tokenizer.json; give prompts as token ids", directory_.string());
  return *tokenizer_;
}

void Engine::validate(const EngineRequest& request) const {
  quire::validate(request.params, config_.spec.vocab_size);
  for (const TokenId id : request.prompt) {
    if (id < 0 || id >= config_.spec.vocab_size) {
      fail("the prompt has token id {}; this model's are from 0 to {}", id, config_.spec.vocab_size - 1);
    }
  }
}

RequestId Engine::submit(EngineRequest request) {
  validate(request);
  const RequestId id = next_id_.fetch_add(1, std::memory_order_relaxed);
  SequenceRequest sequence;
  sequence.id = id;
  sequence.prompt = request.prompt;
  sequence.sampling = make_sampling_state(request.params, eos_token_ids_, request_seed(seed_, id));
  sequence.max_tokens = request.params.max_tokens;
  sequence.min_tokens = request.params.min_tokens;
  sequence.prompt_output = request.prompt_logits ? OutputKind::kAll : OutputKind::kLast;
  outputs_->add(id, std::move(request));
  post(Arrival{id, std::move(sequence)});
  return id;
}

void Engine::abort(RequestId id) { post(Abort{id, true}); }

EngineStats Engine::stats() const {
  const std::lock_guard lock(stats_mutex_);
  return stats_;
}

void Engine::post(Message message) {
  {
    const std::lock_guard lock(mutex_);
    messages_.push_back(std::move(message));
  }
  wake_.notify_one();
}

// The loop. A step is submitted while fewer than depth are in flight; otherwise the oldest is collected.
void Engine::run() {
  const int depth = backend_->asynchronous() ? ModelRunner::kMaxInFlight : 1;
  while (take_messages()) {
    try {
      if (scheduler_->num_in_flight() < depth) {
        if (const auto plan = scheduler_->schedule()) {
          submit_step(*plan);
          continue;
        }
      }
      if (scheduler_->num_in_flight() > 0) collect_step();
    } catch (const std::exception& e) {
      log_error("a step failed: {}", e.what());
      runner_->drop_in_flight();
      steps_.clear();
      for (const SequenceUpdate& update : scheduler_->fail_in_flight()) {
        outputs_->finish(update.id, FinishReason::kError, e.what());
      }
    }
  }
}

// Waits for messages while there is nothing to compute. False: the engine closes.
bool Engine::take_messages() {
  std::vector<Message> messages;
  {
    std::unique_lock lock(mutex_);
    if (!scheduler_->has_unfinished()) wake_.wait(lock, [this] { return closing_ || !messages_.empty(); });
    if (closing_) return false;
    messages.swap(messages_);
  }
  for (Message& message : messages) handle(std::move(message));
  return true;
}

void Engine::handle(Message message) {
  if (auto* arrival = std::get_if<Arrival>(&message)) {
    try {
      scheduler_->add(std::move(arrival->sequence));
    } catch (const Error& e) {
      outputs_->finish(arrival->id, FinishReason::kError, e.what());
    }
  } else if (const Abort& abort = std::get<Abort>(message); scheduler_->abort(abort.id) && abort.tell) {
    outputs_->finish(abort.id, FinishReason::kAbort);
  }
}

void Engine::submit_step(const StepPlan& plan) {
  StepRecord record;
  for (const SequencePlan& sequence : plan.sequences) {
    if (sequence.num_tokens > 1 || !sequence.sample)
      record.prefill_tokens += static_cast<std::uint64_t>(sequence.num_tokens);
    if (sequence.sample) ++record.decode_tokens;
  }
  record.start = std::chrono::steady_clock::now();
  runner_->submit(plan);
  steps_.push_back(record);
}

void Engine::collect_step() {
  outputs_->push(scheduler_->apply(runner_->collect()));
  const StepRecord record = steps_.front();
  steps_.pop_front();
  const auto now = std::chrono::steady_clock::now();
  const double seconds = std::chrono::duration<double>(now - std::max(record.start, last_collected_)).count();
  last_collected_ = now;
  const std::lock_guard lock(stats_mutex_);
  stats_.scheduler = scheduler_->stats();
  stats_.prefill_tokens += record.prefill_tokens;
  stats_.decode_tokens += record.decode_tokens;
  if (record.prefill_tokens > 0) {
    stats_.prefill_seconds += seconds;
  } else {
    stats_.decode_seconds += seconds;
    stats_.decode_only_tokens += record.decode_tokens;
  }
}

}  // namespace quire
