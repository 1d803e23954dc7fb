#include "inspect/latency_plot.h"

#include <algorithm>
#include <cmath>

#include "base/format.h"

namespace quire {
namespace {

// In the drawing's units, which are pixels where nothing scales it.
constexpr double kPanelWidth = 340, kPanelHeight = 250;  // of a panel's axes
constexpr double kLeft = 70, kTop = 60, kGap = 90, kBottom = 60;
constexpr int kMaxSteps = 6;
constexpr std::string_view kHead =
    R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0:g}" height="{1:g}" viewBox="0 0 {0:g} {1:g}" )"
    R"(font-family="sans-serif" font-size="13">
<rect width="100%" height="100%" fill="white"/>
)";
constexpr std::string_view kMedianColor = "#1f5fa8", kP99Color = "#c4502a";

std::string text(double x, double y, std::string_view anchor, std::string_view words,
                 std::string_view more = "") {
  return format_text("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y, anchor, more,
                     escape_svg(words));
}

std::string line(double x1, double y1, double x2, double y2, std::string_view color) {
  return format_text("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\"/>\n", x1,
                     y1, x2, y2, color);
}

class Panel {
 public:
  Panel(const LatencyPanel& panel, double left) : panel_(panel), left_(left) {
    double most_tokens = 0;
    double most_ms = 0;
    for (const LoadPoint& point : panel.points) {
      for (const double ms : {point.median_ms, point.p99_ms}) {
        if (!std::isfinite(point.tokens_per_s) || !std::isfinite(ms)) continue;
        most_tokens = std::max(most_tokens, point.tokens_per_s);
        most_ms = std::max(most_ms, ms);
      }
    }
    x_ticks_ = axis_ticks(most_tokens, kMaxSteps);
    y_ticks_ = axis_ticks(most_ms, kMaxSteps);
  }

  std::string draw() const {
    return axes() + curve(&LoadPoint::median_ms, kMedianColor, false) +
           curve(&LoadPoint::p99_ms, kP99Color, true);
  }

 private:
  double x(double tokens_per_s) const { return left_ + kPanelWidth * tokens_per_s / x_ticks_.back(); }
  double y(double ms) const { return kTop + kPanelHeight * (1 - ms / y_ticks_.back()); }

  std::string axes() const {
    constexpr double kBase = kTop + kPanelHeight;
    std::string svg =
        text(left_ + kPanelWidth / 2, kTop - 12, "middle", panel_.latency + " (ms)", " font-weight=\"bold\"");
    for (const double tick : x_ticks_) {
      svg += line(x(tick), kTop, x(tick), kBase, "#dddddd");
      svg += text(x(tick), kBase + 18, "middle", format_text("{:g}", tick));
    }
    for (const double tick : y_ticks_) {
      svg += line(left_, y(tick), left_ + kPanelWidth, y(tick), "#dddddd");
      svg += text(left_ - 8, y(tick) + 4, "end", format_text("{:g}", tick));
    }
    svg += line(left_, kBase, left_ + kPanelWidth, kBase, "black") + line(left_, kTop, left_, kBase, "black");
    svg += text(left_ + kPanelWidth / 2, kBase + 40, "middle", "output tokens/s");
    svg += text(left_, kBase + 40, "start", "median", format_text(" fill=\"{}\"", kMedianColor));
    svg += text(left_ + kPanelWidth, kBase + 40, "end", "99th percentile",
                format_text(" fill=\"{}\"", kP99Color));
    return svg;
  }

  std::string curve(double LoadPoint::*latency, std::string_view color, bool labelled) const {
    std::string corners;
    std::string marks;
    for (const LoadPoint& point : panel_.points) {
      if (!std::isfinite(point.tokens_per_s) || !std::isfinite(point.*latency)) continue;
      const double at_x = x(point.tokens_per_s);
      const double at_y = y(point.*latency);
      corners += format_text("{:.1f},{:.1f} ", at_x, at_y);
      marks +=
          format_text("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"{}\"/>\n", at_x, at_y, color);
      if (labelled) marks += text(at_x, at_y - 8, "middle", point.label, " font-size=\"11\"");
    }
    return format_text("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n", corners,
                       color) +
           marks;
  }

  const LatencyPanel& panel_;
  double left_;
  std::vector<double> x_ticks_, y_ticks_;
};

}  // namespace

std::string escape_svg(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '<')
      escaped += "&lt;";
    else if (c == '>')
      escaped += "&gt;";
    else if (c == '&')
      escaped += "&amp;";
    else if (static_cast<unsigned char>(c) >= ' ')
      escaped += c;
  }
  return escaped;
}

std::vector<double> axis_ticks(double largest, int count) {
  const double exact = largest > 0 ? largest / count : 1;
  const double power = std::pow(10, std::floor(std::log10(exact)));
  double step = 10 * power;
  for (const double factor : {5.0, 2.0, 1.0})
    if (factor * power >= exact) step = factor * power;
  std::vector<double> ticks = {0};
  while (ticks.back() < largest || ticks.size() < 2)
    ticks.push_back(step * static_cast<double>(ticks.size()));
  return ticks;
}

std::string latency_plot(std::string_view title, std::span<const LatencyPanel> panels) {
  const double width = kLeft + static_cast<double>(panels.size()) * (kPanelWidth + kGap) - kGap + kLeft / 2;
  const double height = kTop + kPanelHeight + kBottom;
  std::string svg = format_text(kHead, width, height);
  svg += text(kLeft, 22, "start", title, " font-size=\"15\"");
  for (std::size_t i = 0; i < panels.size(); ++i)
    svg += Panel(panels[i], kLeft + static_cast<double>(i) * (kPanelWidth + kGap)).draw();
  return svg + "</svg>\n";
}

}  // namespace quire
