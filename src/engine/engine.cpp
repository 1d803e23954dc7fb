#include "engine/engine.h"

#include <algorithm>

#include "base/json.h"
#include "base/log.h"
#include "base/thread_name.h"
#include "engine/preemption_costs.h"

namespace quire {
namespace {

double to_mib(std::size_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

// Pairs in one layer of a token and one it attends to, itself included, among a sequence's first `tokens`.
// window: 0: none.
std::uint64_t attention_pairs(std::uint64_t tokens, int window) {
  const std::uint64_t near = window == 0 ? tokens : std::min(tokens, static_cast<std::uint64_t>(window));
  return near * (near + 1) / 2 + (tokens - near) * near;
}

SchedulingPolicy parse_policy(const std::string& name) {
  if (name == "fcfs") return SchedulingPolicy::kFcfs;
  if (name == "priority") return SchedulingPolicy::kPriority;
  fail("scheduling-policy {} is not known; use fcfs or priority", in_quotes(name));
}

template <typename T>
T queue_limit(const char* flag, T value) {
  if (value < 0) fail("{} is {}; it must be at least 1, or 0 for no limit", flag, value);
  return value;
}

}  // namespace

Engine::Engine(const EngineConfig& config) : Engine(config, open_model(config.model)) {}

Engine::Engine(const EngineConfig& config, ModelFiles model, EngineHooks hooks)
    : model_(std::move(model)),
      hooks_(std::move(hooks)),
      seed_(config.seed),
      max_queued_requests_(queue_limit("max-num-queued-reqs", config.max_num_queued_reqs)),
      max_queued_tokens_(queue_limit("max-num-queued-tokens", config.max_num_queued_tokens)),
      engine_config_(config) {
  const SchedulingPolicy policy = parse_policy(config.scheduling_policy);
  timed("device", [&] {
    ranks_ = std::make_unique<RankGroup>(engine_config_, model_, hooks_);
    ranks_->open();
  });
  naming_model([&] { config_ = ranks_->resolve(); });
  read_eos_token_ids();
  naming_model([&] { plan_ = ranks_->plan_memory(); });
  log_plan();
  timed("weights", [&] { naming_model([&] { ranks_->load(); }); });
  timed("graphs", [&] { ranks_->capture_graphs(); });
  PreemptionCosts preemption;  // as they are: what can be saved is
  if (config_.num_host_blocks > 0 && config.preemption_mode == "auto")
    timed("swap costs", [&] { preemption = measure_preemption_costs(*ranks_, config_); });
  SchedulerConfig scheduling{.max_num_seqs = config_.max_num_seqs,
                             .max_num_batched_tokens = config_.max_num_batched_tokens,
                             .max_span = config.long_prefill_token_threshold,
                             .max_model_len = config_.max_model_len,
                             .layout = config_.cache.layout,
                             .num_blocks = config_.num_blocks,
                             .num_host_blocks = config_.num_host_blocks,
                             .preemption = preemption,
                             .policy = policy,
                             .enable_prefix_caching = config.enable_prefix_caching,
                             .hash_seed = {},
                             .hash_bits = hooks_.prefix_hash_bits};
  if (hooks_.fault) scheduling.on_plan = [this](SequenceId id) { hooks_.fault(EngineStage::kSchedule, id); };
  scheduler_ = std::make_unique<Scheduler>(scheduling);
  outputs_ = std::make_unique<OutputProcessor>(model_.tokenizer ? &*model_.tokenizer : nullptr, hooks_.fault,
                                               [this](SequenceId id) { post(Stop{id}); });
  beams_ = make_search_rounds(*scheduler_, *outputs_, hooks_.fault);
  ranks_->on_lost([this](const std::string& why) { lose(why); });
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
  ranks_.reset();    // as may what it still notices
}

// Runs a part of loading; its errors say which model it was.
template <typename Load>
void Engine::naming_model(const Load& load) {
  const std::string directory = model_.directory.string();
  try {
    load();
  } catch (const Error& e) {
    if (directory.empty() || std::string_view(e.what()).find(directory) != std::string_view::npos) throw;
    fail("{}: {}", directory, e.what());
  }
}

// Runs a part of the start and enters it in the ledger.
template <typename Work>
void Engine::timed(const char* phase, const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  startup_.push_back({phase, taken.count()});
  log_info("start: {} took {:.3f} s", phase, taken.count());
}

void Engine::log_plan() const {
  log_info("{}: {}, {} on {}", model_.directory.string(), model_.config.architecture(),
           to_string(config_.dtype), ranks_->backend().name());
  if (ranks_->size() > 1) log_info("{} ranks; of each:", ranks_->size());
  log_info(
      "memory: weights {:.1f} MiB, KV cache {:.1f} MiB for {} tokens, workspace {:.1f} MiB, host {:.1f} MiB",
      to_mib(plan_.weights), to_mib(plan_.kv_cache), config_.cached_tokens(), to_mib(plan_.workspace),
      to_mib(plan_.host));
  log_info("at most {} sequences and {} tokens a step, {} tokens a sequence", config_.max_num_seqs,
           config_.max_num_batched_tokens, config_.max_model_len);
}

void Engine::read_eos_token_ids() {
  eos_token_ids_ = model_.generation.eos_token_ids;
  if (eos_token_ids_.empty()) eos_token_ids_ = model_.config.eos_token_ids();
  const auto beyond = std::find_if(eos_token_ids_.begin(), eos_token_ids_.end(),
                                   [this](TokenId id) { return id < 0 || id >= config_.spec.vocab_size; });
  if (beyond != eos_token_ids_.end()) {
    fail("{}: eos_token_id {} lies outside the vocabulary of {}", model_.directory.string(), *beyond,
         config_.spec.vocab_size);
  }
  constexpr std::size_t kMaxEos = 128;
  if (eos_token_ids_.size() > kMaxEos)
    fail("{}: more than {} values of eos_token_id", model_.directory.string(), kMaxEos);
}

SamplingParams Engine::default_sampling_params() const {
  const GenerationConfig& defaults = model_.generation;
  SamplingParams params;
  params.temperature = defaults.temperature.value_or(params.temperature);
  params.top_p = defaults.top_p.value_or(params.top_p);
  params.top_k = defaults.top_k.value_or(params.top_k);
  params.min_p = defaults.min_p.value_or(params.min_p);
  params.repetition_penalty = defaults.repetition_penalty.value_or(params.repetition_penalty);
  params.max_tokens = defaults.max_new_tokens.value_or(params.max_tokens);
  return params;
}

const Tokenizer& Engine::tokenizer() const {
  if (!model_.tokenizer) fail("{}: no tokenizer.json; give prompts as token ids", model_.directory.string());
  return *model_.tokenizer;
}

SamplingContext Engine::sampling_context() const {
  return {.vocab_size = config_.spec.vocab_size,
          .max_logprobs = config_.max_logprobs,
          .eos_token_ids = eos_token_ids_,
          .tokenizer = has_tokenizer() ? &*model_.tokenizer : nullptr};
}

void Engine::validate(const EngineRequest& request) const { quire::validate(request, sampling_context()); }

void Engine::abort(RequestId id) { post(Abort{id}); }

EngineStats Engine::stats() const {
  const std::lock_guard lock(stats_mutex_);
  return stats_;
}

void Engine::observe_steps(StepObserver observer, int profile_every) {
  profile_every_ = can_profile() ? profile_every : 0;
  auto shared = observer ? std::make_shared<const StepObserver>(std::move(observer)) : nullptr;
  const std::lock_guard lock(stats_mutex_);
  step_observer_ = std::move(shared);
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
  name_thread("quire-engine");
  const Backend& backend = ranks_->backend();
  while (take_messages()) {
    const int depth = backend.asynchronous() && !backend.runs_on_host() ? ModelRunner::kMaxInFlight : 1;
    try {
      const bool queued = scheduler_->num_in_flight() < depth && queue_step();
      if (!queued && scheduler_->num_in_flight() > 0) collect_step();
    } catch (const std::exception& e) {
      fail_step(e.what());
    }
  }
  drop_steps();
}

// Plans a step and submits it. False: there is nothing to plan.
bool Engine::queue_step() {
  std::optional<StepPlan> plan = scheduler_->schedule();
  const bool failed = finish_unplanned();
  if (plan) submit_step(std::move(*plan));
  return plan || failed;
}

// Ends the requests of what could not be planned. False: there is none.
bool Engine::finish_unplanned() {
  const std::vector<PlanningFailure> failures = scheduler_->take_planning_failures();
  for (const PlanningFailure& failure : failures) {
    log_error("sequence {} could not be planned: {}", failure.id, failure.why);
    finish(failure.id, FinishReason::kError, failure.why);
  }
  if (!failures.empty()) publish_stats();
  return !failures.empty();
}

// All steps in flight are lost, and computed again. Where there is none, what failed is planning as a whole,
// and would again: that ends everything.
void Engine::fail_step(const std::string& why) {
  log_error("a step failed: {}", why);
  finish_unplanned();
  drop_steps();
  const bool goes_on = scheduler_->num_in_flight() > 0 && !lost_;
  const std::vector<SequenceUpdate> failed = goes_on ? scheduler_->fail_in_flight() : scheduler_->fail_all();
  for (const SequenceUpdate& update : failed) finish(update.id, FinishReason::kError, why);
  publish_stats();
}

// A device that is lost fails here, too; then every step that follows will.
void Engine::drop_steps() {
  try {
    if (hooks_.fault) hooks_.fault(EngineStage::kDrop, 0);
    ranks_->drop_in_flight();
  } catch (const std::exception& e) {
    lose(e.what());
  }
  steps_.clear();
}

void Engine::lose(const std::string& why) {
  const std::lock_guard lock(lost_mutex_);
  if (lost_.exchange(true)) return;
  why_lost_ = why;
  log_error("every request will fail from now on: {}", why);
  if (lost_listener_) lost_listener_(why);
}

void Engine::on_lost(std::function<void(const std::string&)> listener) {
  const std::lock_guard lock(lost_mutex_);
  lost_listener_ = std::move(listener);
  if (lost_ && lost_listener_) lost_listener_(why_lost_);
}

void Engine::publish_stats() {
  const std::lock_guard lock(stats_mutex_);
  stats_.scheduler = scheduler_->stats();
}

// Tells the caller of a sequence's end; that of a beam ends its search.
void Engine::finish(SequenceId id, FinishReason reason, const std::string& why) {
  if (!beams_->end(id, reason, why)) outputs_->finish(id, reason, why);
}

// Waits for messages while there is nothing to compute. False: the engine closes.
bool Engine::take_messages() {
  std::vector<Message> messages;
  {
    std::unique_lock lock(mutex_);
    count_queue();
    const bool idle = !scheduler_->has_unfinished() && scheduler_->num_in_flight() == 0;
    if (idle) wake_.wait(lock, [this] { return closing_ || !messages_.empty(); });
    if (closing_) return false;
    messages.swap(messages_);
  }
  const auto guarded = [](const auto& work) {
    try {
      work();
    } catch (const std::exception& e) {  // no memory, say; what runs goes on
      log_error("a message to the engine is lost: {}", e.what());
    }
  };
  for (Message& message : messages)
    guarded([&] { std::visit([this](auto& which) { handle(std::move(which)); }, message); });
  if (!messages.empty()) publish_stats();
  guarded([this] { expire(); });
  return true;
}

void Engine::expire() {
  const std::vector<SequenceId> late = scheduler_->expire(Scheduler::Clock::now());
  for (const SequenceId id : late) finish(id, FinishReason::kTimeout, "its timeout has passed");
  if (!late.empty()) publish_stats();
}

void Engine::handle(Abort abort) {
  if (beams_->end(abort.id, FinishReason::kAbort, {})) return;
  for (const SequenceId id : scheduler_->abort_with_siblings(abort.id))
    outputs_->finish(id, FinishReason::kAbort);
}

void Engine::handle(Stop stop) { scheduler_->abort(stop.id); }

void Engine::submit_step(StepPlan plan) {
  StepInFlight step;
  StepRecord& record = step.record;
  record.tokens = static_cast<std::uint64_t>(plan.num_tokens);
  std::vector<SequenceId> started;
  for (const SequencePlan& sequence : plan.sequences) {
    const auto tokens = static_cast<std::uint64_t>(sequence.num_tokens);
    const bool is_given = !sequence.tokens.empty();  // as prompts are, and the tokens of beams
    if (is_given && !(tokens == 1 && beams_->contains(sequence.sequence))) record.prefill_tokens += tokens;
    if (sequence.sample) ++record.decode_tokens;
    if (sequence.start) started.push_back(sequence.sequence);
    const auto first = static_cast<std::uint64_t>(sequence.first_position);
    for (std::size_t lane = 0; lane < config_.cache.lanes.size(); ++lane) {
      const int window = config_.cache.layout.windows[lane];
      const auto num_layers = static_cast<std::uint64_t>(config_.cache.lanes[lane].num_layers);
      record.attention_pairs +=
          num_layers * (attention_pairs(first + tokens, window) - attention_pairs(first, window));
    }
  }
  step.start = std::chrono::steady_clock::now();
  if (!started.empty()) {
    outputs_->start(started, step.start);
    const std::lock_guard lock(mutex_);
    count_queue();
  }
  if (hooks_.fault) hooks_.fault(EngineStage::kSubmit, 0);
  const int profile_every = profile_every_;
  const bool profiled =
      profile_every > 0 && steps_planned_++ % static_cast<std::uint64_t>(profile_every) == 0;
  record.ops = ranks_->submit(std::move(plan), profiled);
  steps_.push_back(step);
}

void Engine::collect_step() {
  if (hooks_.fault) hooks_.fault(EngineStage::kCollect, 0);
  StepResult result = ranks_->collect();
  const auto now = std::chrono::steady_clock::now();
  const auto start = std::max(steps_.front().start, last_collected_);
  StepRecord record = steps_.front().record;
  record.seconds = std::chrono::duration<double>(now - start).count();
  steps_.pop_front();
  last_collected_ = now;
  std::vector<SequenceUpdate> updates = scheduler_->apply(std::move(result));
  std::vector<SearchResult> results = beams_->take(updates, now);
  book(record);
  for (SearchResult& search : results) outputs_->finish(std::move(search));
  outputs_->push(std::move(updates), now);
}

// Before the step's tokens are handed out, so that whoever has seen a request end has seen its steps booked.
void Engine::book(const StepRecord& record) {
  std::shared_ptr<const StepObserver> observer;
  {
    const std::lock_guard lock(stats_mutex_);
    add_to_stats(record);
    observer = step_observer_;
  }
  if (!observer) return;
  try {
    (*observer)(record);
  } catch (const std::exception& e) {
    log_error("a step's observer failed: {}", e.what());
  }
}

void Engine::add_to_stats(const StepRecord& record) {
  stats_.scheduler = scheduler_->stats();
  stats_.prefill_tokens += record.prefill_tokens;
  stats_.decode_tokens += record.tokens - record.prefill_tokens;
  const double prefill = record.seconds * record.prefill_share();
  stats_.prefill_seconds += prefill;
  stats_.decode_seconds += record.seconds - prefill;
}

}  // namespace quire
