#include <unistd.h>

#include <chrono>

#include "base/format.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output.h"
#include "hub/download.h"

namespace quire::cli {
namespace {

// What comes, on stderr: a line, and on a terminal a bar below it.
class DownloadBar {
 public:
  DownloadBar(const std::string& id, const std::filesystem::path& cache) : id_(id), cache_(cache) {}
  ~DownloadBar() {
    if (drawn_) print_text(stderr, "\n");
  }

  void show(std::uint64_t done, std::uint64_t total) {
    if (total != total_) {  // the small files, then the weights
      total_ = total;
      first_ = done;
      start_ = Clock::now();
      if (drawn_) print_text(stderr, "\n");
      drawn_ = false;
      print_text(stderr, "quire: downloading {} to {}: {:.1f} MB\n", id_, cache_.string(), mb(total));
    }
    if (isatty(STDERR_FILENO) == 0) return;
    const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
    const double rate = seconds > 0 && done > first_ ? mb(done - first_) / seconds : 0;
    print_text(stderr, "\r{} {:.1f} of {:.1f} MB, {:.1f} MB/s\033[K", bar(done, total), mb(done), mb(total),
               rate);
    drawn_ = true;
  }

 private:
  using Clock = std::chrono::steady_clock;
  static double mb(std::uint64_t bytes) { return static_cast<double>(bytes) / 1e6; }

  const std::string& id_;
  const std::filesystem::path& cache_;
  std::uint64_t total_ = 0;
  std::uint64_t first_ = 0;  // bytes that an earlier download left
  Clock::time_point start_;
  bool drawn_ = false;  // the cursor is behind a bar
};

}  // namespace

std::string ModelSource::find(const std::string& model, bool with_weights) const {
  if (!is_hub_model(model)) return model;
  std::optional<InterruptFlag> interrupt;
  DownloadHooks hooks;
  if (interruptible) {
    interrupt.emplace();
    hooks.stopped = InterruptFlag::is_raised;
  }
  const HubSettings settings = hub_settings_from_environment(offline);
  DownloadBar bar(model, settings.cache);
  hooks.on_progress = [&](std::uint64_t done, std::uint64_t total) { bar.show(done, total); };
  return find_hub_model(settings, parse_hub_model(model, revision, with_weights), hooks).string();
}

void add_source_options(Flags flags, ModelSource& source) {
  flags.shown("--revision", source.revision, "branch, tag or commit of a hub id");
  flags.on("--offline", source.offline, "take a hub id from the cache alone");
}

}  // namespace quire::cli
