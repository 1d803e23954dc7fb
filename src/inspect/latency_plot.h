#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace quire {

// A load of a sweep. What is not finite is not drawn.
struct LoadPoint {
  std::string label;  // what the load was, in a word
  double tokens_per_s = 0;
  double median_ms = 0;
  double p99_ms = 0;
};

struct LatencyPanel {
  std::string latency;            // its name
  std::vector<LoadPoint> points;  // in the order of the sweep
};

// An SVG drawing: a panel beside the other, each with one latency's median and 99th percentile over the
// throughput.
std::string latency_plot(std::string_view title, std::span<const LatencyPanel> panels);

// A text as it stands in a drawing: without control characters.
std::string escape_svg(std::string_view text);

// At most `count` round steps (1, 2 or 5 times a power of ten) from 0 to at least `largest`.
std::vector<double> axis_ticks(double largest, int count);

}  // namespace quire
