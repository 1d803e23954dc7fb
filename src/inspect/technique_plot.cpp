#include <algorithm>
#include <cmath>
#include <utility>

#include "base/format.h"
#include "inspect/latency_plot.h"
#include "inspect/techniques.h"

namespace quire {
namespace {

// In the drawing's units, which are pixels where nothing scales it.
constexpr double kLineHeight = 24, kRowsTop = 56, kTextLeft = 16;
constexpr double kAxis = 250;                       // where a factor of one is
constexpr double kMostLeft = 30, kMostRight = 300;  // of bars from there on
constexpr std::string_view kHeadAndStyle =
    R"(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 860 {0:g}" width="860" height="{0:g}" role="img">
<title>{1}</title>
<style>
svg {{ background: #ffffff; font: 13px sans-serif }} text {{ fill: #1c2330 }}
.soft {{ fill: #5a6372 }} .up {{ fill: #1f6fb8 }} .down {{ fill: #b5532a }} .head {{ font-weight: bold }}
@media (prefers-color-scheme: dark) {{
  svg {{ background: #14181f }} text {{ fill: #e8ecf2 }}
  .soft {{ fill: #a3adbb }} .up {{ fill: #5aa9ee }} .down {{ fill: #e58a5c }}
}}
</style>
)";

std::string words(double x, double y, std::string_view style, std::string_view text) {
  return format_text("<text x=\"{:.1f}\" y=\"{:.1f}\" class=\"{}\">{}</text>\n", x, y, style,
                     escape_svg(text));
}

std::string bar(const TechniqueRow& row, const TechniqueRow* before, double y, double unit) {
  if (!row.skipped.empty()) return words(kAxis + 8, y, "soft", "not measured");
  if (before == nullptr)
    return words(kAxis + 8, y, "soft", format_text("{:.4g} {}", row.value(), row.unit()));
  const double length = unit * std::log2(row.factor);
  const double left = std::clamp(-length, 0.0, kMostLeft), right = std::max(0.0, length);
  return format_text(
             "<rect class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"14\" rx=\"2\"/>\n",
             length < 0 ? "down" : "up", kAxis - left, y - 11, std::max(1.0, left + right)) +
         words(kAxis + right + 8, y, "",
               format_text("×{:.3g}   {:.4g} → {:.4g} {}", row.factor, before->value(row.figure), row.value(),
                           row.unit()));
}

}  // namespace

std::string technique_plot(std::string_view title, const TechniqueReport& report) {
  double most = 2, y = kRowsTop;
  for (const TechniqueRow& row : report.rows)
    if (std::isfinite(row.factor)) most = std::max(most, row.factor);
  std::string lines = words(kTextLeft, 24, "head", title);
  std::size_t workload = report.workloads.size();
  for (const TechniqueRow& row : report.rows) {
    if (std::exchange(workload, row.workload) != row.workload)
      lines += words(kTextLeft, std::exchange(y, y + kLineHeight), "soft", report.workloads[row.workload]);
    lines += words(kTextLeft + 12, y, "", row.name) +
             bar(row, report.before(row), y, kMostRight / std::log2(most));
    y += kLineHeight;
  }
  return format_text(kHeadAndStyle, y, escape_svg(title)) + lines + "</svg>\n";
}

}  // namespace quire
