#include "server/prometheus_text.h"

#include <algorithm>

#include "base/format.h"

namespace quire::server {
namespace {

std::string escaped(std::string_view text, bool in_label) {
  std::string result;
  for (const char c : text) {
    if (c == '\n' || c == '\\' || (in_label && c == '"')) result += '\\';
    result += c == '\n' ? 'n' : c;
  }
  return result;
}

// A number as Python's client spells it, whose bounds dashboards know: 1.0, 0.25, 1e+06.
std::string with_point(std::string number) {
  const bool is_integer = number.find_first_not_of("-0123456789") == std::string::npos;
  return is_integer ? number + ".0" : number;
}

}  // namespace

void Histogram::observe(double value) {
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  counts_[static_cast<std::size_t>(bucket)].fetch_add(1, std::memory_order_relaxed);
  sum_.fetch_add(value, std::memory_order_relaxed);
}

std::vector<std::uint64_t> Histogram::counts() const { return {counts_.begin(), counts_.end()}; }

std::vector<double> bounds_up_to(int most) {
  std::vector<double> bounds;
  for (double power = 1;; power *= 10) {
    for (const double digit : {1, 2, 5}) {
      if (digit * power > most) return bounds;
      bounds.push_back(digit * power);
    }
  }
}

void PrometheusText::metric(std::string_view name, std::string_view type, std::string_view help,
                            const std::vector<Sample>& samples) {
  text_ += format_text("# HELP {} {}\n# TYPE {} {}\n", name, escaped(help, false), name, type);
  for (const Sample& one : samples) sample(name, one);
}

void PrometheusText::sample(std::string_view name, const Sample& sample) {
  Labels all = labels_;
  all.insert(all.end(), sample.labels.begin(), sample.labels.end());
  std::sort(all.begin(), all.end());
  std::string list;
  for (const auto& [label, text] : all)
    list += format_text("{}{}=\"{}\"", list.empty() ? "" : ",", label, escaped(text, true));
  if (!list.empty()) list = format_text("{{{}}}", list);
  text_ += format_text("{}{} {}\n", name, list, with_point(format_text("{}", sample.value)));
}

void PrometheusText::histogram(std::string_view name, std::string_view help,
                               const std::vector<Counted>& histograms) {
  metric(name, "histogram", help, {});
  for (const auto& [histogram, labels] : histograms) {
    const std::vector<std::uint64_t> counts = histogram.counts();
    std::uint64_t count = 0;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      count += counts[i];
      const bool is_last = i + 1 == counts.size();
      Labels all = labels;
      all.emplace_back("le", is_last ? "+Inf" : with_point(format_text("{:g}", histogram.bounds()[i])));
      sample(format_text("{}_bucket", name), {count, std::move(all)});
    }
    sample(format_text("{}_count", name), {count, labels});
    sample(format_text("{}_sum", name), {histogram.sum(), labels});
  }
}

}  // namespace quire::server
