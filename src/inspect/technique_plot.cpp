#include "inspect/technique_plot.h"

#include <algorithm>
#include <cmath>

#include "base/format.h"

namespace quire {
namespace {

// In the drawing's units, which are pixels where nothing scales it.
constexpr double kDrawingWidth = 860, kLineHeight = 24, kTop = 56, kLeft = 16;
constexpr double kAxis = 260;                       // where a factor of one is
constexpr double kLeastSpan = 30, kMostSpan = 300;  // of bars to the left of it and to the right
constexpr std::string_view kStyle = R"(<style>
svg { background: #ffffff; font: 13px sans-serif }
text { fill: #1c2330 } .soft { fill: #5a6372 } .up { fill: #1f6fb8 } .down { fill: #b5532a }
line { stroke: #8b93a1 }
@media (prefers-color-scheme: dark) {
  svg { background: #14181f } text { fill: #e8ecf2 } .soft { fill: #a3adbb } .up { fill: #5aa9ee }
  .down { fill: #e58a5c } line { stroke: #6b7482 }
}
</style>
)";

std::string escape(std::string_view text) {
  std::string escaped;
  for (const char c : text)
    escaped += c == '<' ? "&lt;" : c == '&' ? "&amp;" : std::string(static_cast<unsigned char>(c) >= ' ', c);
  return escaped;
}

std::string words(double x, double y, std::string_view text, std::string_view style = "") {
  return format_text("<text x=\"{:.1f}\" y=\"{:.1f}\"{}>{}</text>\n", x, y, style, escape(text));
}

// "8.1 → 28.0 tokens/s", where there is a row before.
std::string figures_of(const TechniqueRow& row, const TechniqueReport& report) {
  const double now = row.*row.figure->value;
  const auto before = std::ranges::find_if(report.rows, [&](const TechniqueRow& other) {
    return other.workload == row.workload && other.name == row.against;
  });
  const std::string from =
      before == report.rows.end() ? "" : format_text("{:.4g} → ", (*before).*row.figure->value);
  return format_text("{}{:.4g} {}", from, now, row.figure->unit);
}

std::string bar(const TechniqueRow& row, double y, double unit, const TechniqueReport& report) {
  if (!row.skipped.empty()) return words(kAxis + 8, y, "not measured", " class=\"soft\"");
  if (std::isnan(row.factor)) return words(kAxis + 8, y, figures_of(row, report), " class=\"soft\"");
  const double length = unit * std::log2(row.factor), left = std::clamp(length, -kLeastSpan, 0.0);
  return format_text(
             "<rect class=\"{}\" x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"14\" rx=\"2\"/>\n",
             length < 0 ? "down" : "up", kAxis + left, y - 11,
             std::max(1.0, std::abs(left) + std::max(0.0, length))) +
         words(kAxis + std::max(0.0, length) + 8, y,
               format_text("×{:.3g}   {}", row.factor, figures_of(row, report)));
}

}  // namespace

std::string technique_plot(std::string_view title, const TechniqueReport& report) {
  double most = 2;
  for (const TechniqueRow& row : report.rows)
    if (std::isfinite(row.factor)) most = std::max(most, row.factor);
  const double unit = kMostSpan / std::log2(most);  // of a factor of two
  double y = kTop;
  std::string lines;
  for (std::size_t i = 0; i < report.rows.size(); ++i) {
    const TechniqueRow& row = report.rows[i];
    if (i == 0 || row.workload != report.rows[i - 1].workload) {
      y += i == 0 ? 0 : 10;
      lines += words(kLeft, y, report.workloads[row.workload], " class=\"soft\" font-style=\"italic\"");
      y += kLineHeight;
    }
    lines += words(kLeft, y, row.name) + bar(row, y, unit, report);
    y += kLineHeight;
  }
  return format_text(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:g} {1:g}\" width=\"{0:g}\" "
             "height=\"{1:g}\" role=\"img\">\n<title>{2}</title>\n{3}",
             kDrawingWidth, y, escape(title), kStyle) +
         words(kLeft, 24, title, " font-weight=\"bold\"") +
         format_text("<line x1=\"{0:g}\" y1=\"{1:g}\" x2=\"{0:g}\" y2=\"{2:g}\"/>\n", kAxis, kTop + 4,
                     y - 12) +
         lines + "</svg>\n";
}

}  // namespace quire
