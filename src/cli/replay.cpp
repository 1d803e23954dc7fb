#include "base/json.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output.h"
#include "inspect/recomputation.h"
#include "record/recording.h"
#include "record/replayer.h"

namespace quire::cli {
namespace {

void print_info(const RecordingInfo& info) {
  print_text(stdout, "{}, {} on {}; recorded {}, {} the ids of tokens\n", info.model, info.dtype, info.device,
             utc_text(info.started, "%Y-%m-%d %H:%M:%S UTC"), info.with_tokens ? "with" : "without");
}

void print_summary(const Recording& recording, const Replayer& replayer, double seconds, bool whole) {
  print_info(recording.info());
  print_text(stdout, "{} requests, {} steps in {:.3f} s, {} tokens computed{}\n", replayer.num_requests(),
             replayer.step(), seconds, replayer.num_tokens(), whole ? "" : "; its end is cut off");
  const auto& difference = replayer.difference();
  if (!difference) {
    print_text(stdout, "every plan was made again\n");
    return;
  }
  print_text(stdout, "step {}: {}\n", difference->step, difference->what);
  if (!difference->recorded.empty())
    print_text(stdout, "\nrecorded:\n{}\nmade again:\n{}", difference->recorded, difference->replayed);
  print_text(stdout, "\nthe state that led there:\n{}", to_text(replayer.scheduler()));
}

void print_recomputed(const RecordingInfo& info, const Recomputation& result) {
  print_info(info);
  print_text(stdout, "{} steps computed again, {} tokens as recorded{}\n", result.num_steps,
             result.num_compared, result.whole ? "" : "; its end is cut off");
  if (result.num_masked > 0)
    print_text(stdout, "{} more are of structured outputs, whose grammars are not recorded: not compared\n",
               result.num_masked);
  if (const auto& plans = result.plans)
    print_text(stdout, "step {}: {}; quire replay without --model shows it\n", plans->step, plans->what);
  if (const auto& difference = result.difference)
    print_text(stdout, "step {}: sequence {} has token {} in the recording, and {} here\n", difference->step,
               difference->sequence, difference->recorded, difference->computed);
}

struct Replay : EngineOptions {
  std::string file;
  std::optional<std::uint64_t> at;
  bool json = false;
  bool window = false;
  int port = 8000;

  void add_to(Flags flags) {
    add_model_to(flags, "--model");
    add_numbers_to(flags);
    CLI::Option* const model = flags.command.get_option("--model")->description(
        "compute what was recorded with --record-tokens again by this model, given as to quire serve, and "
        "compare the tokens");
    for (CLI::Option* option : flags.command.get_options())
      if (option != model && option != flags.command.get_help_ptr()) option->needs(model);
    flags.value("FILE", file, "what --record has written")->required();
    flags.value("--at", at, "show this step's plan, and what the scheduler has behind it")->excludes(model);
    flags.on("--json", json, "print one JSON object")->excludes("--at");
    flags.on("--window", window, "show it on a page at /window, step by step")
        ->excludes("--at", "--json", "--model");
    flags.shown("--port", port, "of the page; 0: any that is free", CLI::Range(0, 65535))->needs("--window");
  }

  int run() {
    if (window) return serve_recording(file, port);
    const Recording recording(file);
    if (!config.model.empty()) return compute(recording);
    if (!recording.info().from_start) return show_part(recording);
    Replayer replayer(recording.info().scheduler);
    RecordingReader reader(recording);
    while (reader.next(replayer) && !replayer.difference() && (!at || replayer.step() < *at)) {
    }
    const auto& difference = replayer.difference();
    if (at && !difference) return show_state(recording, replayer);
    const double seconds = static_cast<double>(reader.time()) / 1e6;
    if (json)
      print_json_line({{"model", recording.info().model},
                       {"requests", replayer.num_requests()},
                       {"steps", replayer.step()},
                       {"seconds", seconds},
                       {"tokens", replayer.num_tokens()},
                       {"whole", reader.ended()},
                       {"differs_at", difference ? OrderedJson(difference->step) : OrderedJson()}});
    else
      print_summary(recording, replayer, seconds, reader.ended());
    return difference ? kFailed : 0;
  }

 private:
  int compute(const Recording& recording) {
    refuse_several_processes("replay");
    const Recomputation result = recompute(recording, config, open());
    if (json)
      print_json_line({{"model", recording.info().model},
                       {"steps", result.num_steps},
                       {"compared", result.num_compared},
                       {"masked", result.num_masked},
                       {"whole", result.whole},
                       {"differs_at", result.difference ? OrderedJson(result.difference->step)
                                      : result.plans    ? OrderedJson(result.plans->step)
                                                        : OrderedJson()}});
    else
      print_recomputed(recording.info(), result);
    return result.passed() ? 0 : kFailed;
  }
  // Of the step that was asked for, or else of the last one; empty: it is not there.
  std::string recorded_plan(const Recording& recording) const {
    struct RecordedPlan : SchedulerObserver {
      std::optional<std::uint64_t> step;
      std::string text;

      void planned(const StepPlan* plan, std::span<const PlanningFailure> /*failures*/) override {
        if (plan != nullptr && (!step || plan->id == *step)) text = to_text(*plan);
      }
    } plan;
    plan.step = at;
    recording.read(plan);
    return plan.text;
  }
  // Where the beginning is missing there is nothing to be done again.
  int show_part(const Recording& recording) const {
    const std::string plan = recorded_plan(recording);
    if (plan.empty() && at) fail("{}: step {} is not in it", file, *at);
    if (json) fail("{}: it is the last part of what was, of which --json has nothing to say", file);
    print_info(recording.info());
    print_text(stdout, "the last part of what was: it can be looked at, not made again\n\n{}", plan);
    return 0;
  }

  int show_state(const Recording& recording, const Replayer& replayer) const {
    if (replayer.step() < *at) fail("{}: it has {} steps, not {}", file, replayer.step(), *at);
    print_text(stdout, "{}\n{}", recorded_plan(recording), to_text(replayer.scheduler()));
    return 0;
  }
};

}  // namespace

void add_replay(CLI::App& app, Command& chosen) {
  add_command<Replay>(app, chosen, "replay",
                      "Make the plans of a recording again, and compare them step by step");
}

}  // namespace quire::cli
