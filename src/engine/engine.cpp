#include "engine/engine.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <iterator>
#include <utility>

#include "base/json.h"
#include "base/log.h"
#include "base/threads.h"

namespace quire {
namespace {

double to_mib(std::size_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

SchedulingPolicy parse_policy(const std::string& name) {
  if (name == "fcfs") return SchedulingPolicy::kFcfs;
  if (name == "priority") return SchedulingPolicy::kPriority;
  fail("scheduling-policy {} is not known; use fcfs or priority", in_quotes(name));
}

}  // namespace

Engine::Engine(const EngineConfig& config) : Engine(config, open_model(config.model)) {}

Engine::Engine(const EngineConfig& config, ModelFiles model, EngineHooks hooks)
    : setup_{config, std::move(model), std::move(hooks)},
      given_(given_defaults(setup_.model.generation, config)),
      mailbox_({config.max_num_queued_reqs, config.max_num_queued_tokens}),
      invariants_(config.check_invariants) {
  SchedulerConfig scheduling;
  scheduling.policy = parse_policy(config.scheduling_policy);
  timed("device", [&] {
    ranks_ = make_rank_group(setup_);
    ranks_->open();
  });
  load();
  timed("graphs", [&] { ranks_->capture_graphs(); });
  // As the costs are without it, what can be saved is.
  if (config_.num_host_blocks > 0 && config.preemption_mode == "auto")
    timed("swap costs", [&] { scheduling.preemption = measure_preemption_costs(*ranks_, config_); });
  static_cast<CacheSizes&>(scheduling) = config_;
  scheduling.max_num_seqs = config_.max_num_seqs;
  scheduling.max_num_batched_tokens = config_.max_num_batched_tokens;
  scheduling.max_span = config.long_prefill_token_threshold;
  scheduling.max_model_len = config_.max_model_len;
  scheduling.layout = config_.cache.layout;
  scheduling.enable_prefix_caching = config.enable_prefix_caching;
  scheduling.hash_bits = setup_.hooks.prefix_hash_bits;
  const auto& fault = setup_.hooks.fault;
  if (fault) scheduling.on_plan = [&fault](SequenceId id) { fault(EngineStage::kSchedule, id); };
  recorder_ = std::make_unique<Recorder>(
      RecordingInfo{
          .model = setup_.model.name.empty() ? setup_.model.config.architecture() : setup_.model.name,
          .device = std::string(ranks_->own().backend().name()),
          .dtype = std::string(to_string(config_.dtype)),
          .started = std::time(nullptr),
          .with_tokens = config.record_tokens,
          .scheduler = scheduling},
      config.record);
  scheduling.observers = {recorder_.get()};
  scheduler_ = std::make_unique<Scheduler>(scheduling);
  outputs_ = std::make_unique<OutputProcessor>(
      has_tokenizer() ? &*setup_.model.tokenizer : nullptr, fault, [this](SequenceId id) {
        mailbox_.post([this, id] {
          if (!end_held(id, FinishReason::kAbort) && !beams_->end(id, FinishReason::kAbort, {}))
            scheduler_->abort(id);
        });
      });
  beams_ = make_search_rounds(*scheduler_, *outputs_, fault);
  compiler_ = make_grammar_compiler(
      sampling_context(), [this] { mailbox_.wake(); }, fault);
  masker_.emplace(config_.spec.vocab_size, eos_token_ids_);
  ranks_->on_lost([this](const std::string& why) { lose(why); });
  watch_.emplace(ranks_->own().backend(), config.watchdog, [this](const std::string& why) { give_up(why); });
  thread_ = std::thread([this] { run(); });
}

Engine::~Engine() {
  mailbox_.close();
  if (watch_->is_stuck() && !watch_->wait_ended()) {
    log_error("the process ends: its engine is stuck");
    std::fflush(nullptr);
    std::_Exit(1);
  }
  thread_.join();
  watch_.reset();     // what it notices ends outputs
  compiler_.reset();  // what it still compiles may wake this engine
  outputs_.reset();   // as may what it still delivers
  ranks_.reset();     // as may what it still notices
}

// Resolves the configuration and loads the model. Errors say which model it was.
void Engine::load() try {
  config_ = ranks_->resolve();
  read_eos_token_ids();
  plan_ = ranks_->own().plan_memory();
  log_plan();
  if (config_.weight_only && !plan_.leaves_out_rounding)
    log_warning("weight-only changes nothing: no product of this model would round its input");
  timed("weights", [&] { ranks_->load(); });
} catch (const Error& e) {
  const ModelFiles& model = setup_.model;
  const std::string where = model.where.empty() ? model.directory.string() : model.where;
  if (where.empty() || std::string_view(e.what()).find(where) != std::string_view::npos) throw;
  fail("{}: {}", where, e.what());
}

// Runs a part of the start and enters it in the ledger.
template <typename Work>
void Engine::timed(const char* phase, const Work& work) {
  if (setup_.config.stopped && setup_.config.stopped()) throw Stopped();
  const auto start = std::chrono::steady_clock::now();
  work();
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
  startup_.push_back({phase, taken.count()});
  log_info("start: {} took {:.3f} s", phase, taken.count());
}

void Engine::log_plan() const {
  log_info("{}: {}, {} on {}", setup_.model.directory.string(), setup_.model.config.architecture(),
           to_string(config_.dtype), ranks_->own().backend().name());
  if (ranks_->size() > 1) log_info("{} ranks; of each:", ranks_->size());
  log_info(
      "memory: weights {:.1f} MiB, KV cache {:.1f} MiB for {} tokens, workspace {:.1f} MiB, host {:.1f} MiB",
      to_mib(plan_.weights), to_mib(plan_.kv_cache), config_.cached_tokens(), to_mib(plan_.workspace),
      to_mib(plan_.host));
  log_info("at most {} sequences and {} tokens a step, {} tokens a sequence", config_.max_num_seqs,
           config_.max_num_batched_tokens, config_.max_model_len);
}

void Engine::read_eos_token_ids() {
  eos_token_ids_ = given_.generation.eos_token_ids;
  if (eos_token_ids_.empty()) eos_token_ids_ = setup_.model.config.eos_token_ids();
  for (const TokenId id : eos_token_ids_)
    if (id < 0 || id >= config_.spec.vocab_size)
      fail("eos_token_id {} lies outside the vocabulary of {}", id, config_.spec.vocab_size);
  constexpr std::size_t kMaxEos = 128;
  if (eos_token_ids_.size() > kMaxEos) fail("more than {} values of eos_token_id", kMaxEos);
}

SamplingParams Engine::default_sampling_params() const {
  const GenerationConfig& defaults = given_.generation;
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
  if (!setup_.model.tokenizer)
    fail("{}: no tokenizer.json; give prompts as token ids", setup_.model.directory.string());
  return *setup_.model.tokenizer;
}

std::optional<CheckpointChatTemplate> Engine::find_chat_template(std::string& why_none) const {
  try {
    why_none = format_text("{}: no chat template in chat_template.jinja or tokenizer_config.json",
                           model_directory().string());
    return load_chat_template();
  } catch (const Error& e) {
    why_none = e.what();
    return std::nullopt;
  }
}

SamplingContext Engine::sampling_context() const {
  return {.vocab_size = config_.spec.vocab_size,
          .max_logprobs = config_.max_logprobs,
          .eos_token_ids = eos_token_ids_,
          .tokenizer = has_tokenizer() ? &*setup_.model.tokenizer : nullptr};
}

void Engine::validate(const EngineRequest& request) const {
  quire::validate(request.params, sampling_context());
  validate_without_params(request, sampling_context());
}

void Engine::abort(RequestId id) {
  mailbox_.post([this, id] {
    if (end_held(id, FinishReason::kAbort) || beams_->end(id, FinishReason::kAbort, {})) return;
    for (const SequenceId sequence : scheduler_->abort_with_siblings(id))
      outputs_->finish(sequence, FinishReason::kAbort);
  });
}

// The loop. A step is submitted while fewer than depth are in flight; otherwise the oldest is collected.
void Engine::run() {
  name_thread("quire-engine");
  const Backend& backend = ranks_->own().backend();
  while (take_tasks()) {
    const bool overlaps = setup_.hooks.pipelined || (backend.asynchronous() && !backend.runs_on_host());
    const int depth = overlaps ? kMaxStepsInFlight : 1;
    watch_->begin_turn();
    try {
      const bool queued = scheduler_->num_in_flight() < depth && queue_step();
      if (!queued && scheduler_->num_in_flight() > 0) collect_step();
    } catch (const std::exception& e) {
      fail_step(what_of(e));
    }
    watch_->end_turn();
  }
  drop_steps();
  watch_->engine_ends();
}

// Plans a step and submits it. False: there is nothing to plan.
bool Engine::queue_step() {
  std::optional<StepPlan> plan = scheduler_->schedule();
  const bool failed = finish_unplanned();
  if (plan) submit_step(std::move(*plan));
  return plan || failed;
}

void Engine::submit_step(StepPlan plan) {
  StepRecord record = StepStatistics::describe(plan, config_.cache, *beams_);
  std::vector<OutputProcessor::Start> started;
  for (const SequencePlan& sequence : plan.sequences)
    if (sequence.start) started.push_back({sequence.sequence});
  record.planned = TimePoint::clock::now();
  if (!started.empty()) {
    outputs_->start(std::move(started), record.planned);
    publish_stats();
  }
  watch_->submit(plan);
  setup_.hooks.visit(EngineStage::kSubmit);
  masker_->take(plan);
  record.ops = ranks_->submit(std::move(plan), statistics_.profile_next());
  statistics_.begin(std::move(record));
  // What a step before this one samples is known when that is collected.
  if (scheduler_->num_in_flight() == 1) sample_step();
}

// Has the newest step sampled under its masks, if it is to be.
void Engine::sample_step() {
  if (!masker_->pending()) return;
  std::vector<StepMasker::Row> rows = masker_->compute(*scheduler_);
  ranks_->sample(masker_->masks());
  statistics_.note_masks(masker_->seconds());
  for (StepMasker::Row& row : rows) {
    foreseen_.reserve(foreseen_.size() + row.forced.size() + 1);  // what ends here is told
    if (!row.error.empty()) {
      scheduler_->abort(row.id);
      foreseen_.push_back({.id = row.id,
                           .finish = FinishReason::kError,
                           .error = std::move(row.error),
                           .is_request_at_fault = row.is_request_at_fault});
    } else if (!row.forced.empty()) {
      std::ranges::move(scheduler_->foresee(row.id, row.forced), std::back_inserter(foreseen_));
    }
  }
}

void Engine::collect_step() {
  watch_->collect(scheduler_->num_in_flight());
  setup_.hooks.visit(EngineStage::kCollect);
  StepResult result = ranks_->collect();
  const auto now = TimePoint::clock::now();
  // Kept where fail_step finds them.
  foreseen_.reserve(foreseen_.size() + result.sequences.size());
  std::ranges::move(scheduler_->apply(std::move(result)), std::back_inserter(foreseen_));
  const std::span<SearchResult> results = beams_->take(foreseen_, now);
  // Before the step's tokens are handed out, so that whoever has seen a request end has seen its steps
  // booked.
  statistics_.end(scheduler_stats(), now);
  for (SearchResult& search : results) outputs_->finish(std::move(search));
  outputs_->push(std::exchange(foreseen_, {}), now);
  sample_step();
  check_invariants();
}

// Now and then. Where contents may be mixed, nobody is told more of them.
void Engine::check_invariants() {
  if (!invariants_.is_due(TimePoint::clock::now())) return;
  const BrokenInvariant broken = invariants_.check([this] {
    setup_.hooks.visit(EngineStage::kCheck);
    scheduler_->check();
  });
  if (broken.what.empty()) return;
  save_recording();
  if (!broken.mixes_contents) return;
  give_up(broken.what);
  fail("{}", broken.what);
}

// Waits for tasks while there is nothing to compute, and does them. False: the engine closes.
bool Engine::take_tasks() {
  const bool idle = !scheduler_->has_unfinished() && scheduler_->num_in_flight() == 0;
  const std::optional<std::list<Mailbox::Task>> tasks = mailbox_.take(idle, next_deadline());
  if (!tasks) return false;
  const auto guarded = [](const auto& work) {
    try {
      work();
    } catch (const std::exception& e) {  // no memory, say; what runs goes on
      log_error("a message to the engine is lost: {}", what_of(e));
    }
  };
  for (const Mailbox::Task& task : *tasks) guarded(task);
  guarded([this] {
    const auto now = TimePoint::clock::now();
    for (const SequenceId id : scheduler_->expire(now)) finish(id, FinishReason::kTimeout, kTimedOut);
    expire_held(now);
  });
  guarded([this] { release_compiled(); });
  publish_stats();
  return true;
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
  save_recording();
  masker_->drop();
  outputs_->push(std::exchange(foreseen_, {}), TimePoint::clock::now());
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
    setup_.hooks.visit(EngineStage::kDrop);
    ranks_->drop_in_flight();
  } catch (const std::exception& e) {
    lose(e.what());
  }
  statistics_.drop();
}

// As lose, where the ranks know nothing of it; any thread.
void Engine::give_up(const std::string& why) {
  gave_up_ = true;
  lose(why);
  outputs_->fail_all(why);
}

void Engine::lose(const std::string& why) {
  const std::lock_guard lock(lost_mutex_);
  if (lost_.exchange(true)) return;
  why_lost_ = why;
  log_error("every request will fail from now on: {}", why);
  save_recording();
  if (lost_listener_) lost_listener_(why);
}

// What is kept in memory, the first time that something fails.
void Engine::save_recording() {
  if (!recorder_ || recorder_->has_file()) return;
  std::call_once(saved_recording_, [this] {
    try {
      const std::string name = format_text("quire-{}-{}.rec", ::getpid(), std::time(nullptr));
      const std::string path = (std::filesystem::temp_directory_path() / name).string();
      recorder_->save(path);
      log_error("what was scheduled before lies in {}, for quire replay", path);
    } catch (const std::exception& e) {
      log_error("{}", e.what());
    }
  });
}

void Engine::on_lost(std::function<void(const std::string&)> listener) {
  const std::lock_guard lock(lost_mutex_);
  lost_listener_ = std::move(listener);
  if (lost_ && lost_listener_) lost_listener_(why_lost_);
}

// The scheduler's, with what waits to be added to it.
SchedulerStats Engine::scheduler_stats() const {
  SchedulerStats stats = scheduler_->stats();
  for (const auto& [id, arrival] : held_) {
    stats.num_waiting += arrival.request->num_outputs;
    ++stats.num_queued_requests;
    stats.num_queued_tokens += arrival.request->num_queued_tokens();
  }
  return stats;
}

void Engine::publish_stats() {
  const SchedulerStats stats = scheduler_stats();
  statistics_.publish(stats);
  mailbox_.count(stats);
}

// Tells the caller of a sequence's end; that of a beam ends its search.
void Engine::finish(SequenceId id, FinishReason reason, const std::string& why) {
  if (!beams_->end(id, reason, why)) outputs_->finish(id, reason, why);
}

}  // namespace quire
