#include "inspect/load_figures.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

namespace quire {
namespace {

constexpr double kMsPerSecond = 1e3;

double rate(std::int64_t amount, double seconds) {
  return amount > 0 && seconds > 0 ? static_cast<double>(amount) / seconds
                                   : std::numeric_limits<double>::quiet_NaN();
}

void add_latencies(const RequestTimeline& timeline, LoadFigures& figures) {
  figures.e2e_ms.push_back(kMsPerSecond * (timeline.end - timeline.sent));
  if (timeline.chunks.empty()) return;
  const double first = timeline.chunks.front();
  figures.ttft_ms.push_back(kMsPerSecond * (first - timeline.sent));
  if (timeline.output_tokens > 1)
    figures.tpot_ms.push_back(kMsPerSecond * (timeline.end - first) / (timeline.output_tokens - 1));
  for (std::size_t i = 1; i < timeline.chunks.size(); ++i)
    figures.itl_ms.push_back(kMsPerSecond * (timeline.chunks[i] - timeline.chunks[i - 1]));
}

std::size_t peak_concurrency(const LoadResult& result) {
  std::vector<std::pair<double, int>> changes;  // an end before a beginning of the same time
  for (const RequestTimeline& timeline : result.timelines) {
    if (timeline.state == RequestTimeline::State::kUnsent) continue;
    const bool under_way = timeline.state == RequestTimeline::State::kUnderWay;
    changes.emplace_back(timeline.sent, 1);
    changes.emplace_back(under_way ? result.seconds : timeline.end, -1);
  }
  std::sort(changes.begin(), changes.end());
  int now = 0;
  int peak = 0;
  for (const auto& change : changes) peak = std::max(peak, now += change.second);
  return static_cast<std::size_t>(peak);
}

}  // namespace

LoadFigures load_figures(const LoadResult& result) {
  LoadFigures figures;
  figures.seconds = result.seconds;
  figures.peak_concurrency = peak_concurrency(result);
  for (const RequestTimeline& timeline : result.timelines) {
    switch (timeline.state) {
      case RequestTimeline::State::kUnsent:
        break;
      case RequestTimeline::State::kUnderWay:
        ++figures.num_cancelled;
        break;
      case RequestTimeline::State::kFailed:
        if (figures.num_failed++ == 0) figures.first_error = timeline.error;
        break;
      case RequestTimeline::State::kDone:
        ++figures.num_done;
        figures.num_without_usage += timeline.has_usage ? 0 : 1;
        figures.prompt_tokens += timeline.prompt_tokens;
        figures.output_tokens += timeline.output_tokens;
        add_latencies(timeline, figures);
        break;
    }
  }
  return figures;
}

double LoadFigures::requests_per_s() const { return rate(static_cast<std::int64_t>(num_done), seconds); }
double LoadFigures::prompt_tokens_per_s() const { return rate(prompt_tokens, seconds); }
double LoadFigures::output_tokens_per_s() const { return rate(output_tokens, seconds); }
double LoadFigures::total_tokens_per_s() const { return rate(prompt_tokens + output_tokens, seconds); }

double mean(const std::vector<double>& values) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace quire
