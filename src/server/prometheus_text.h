#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace quire::server {

using Labels = std::vector<std::pair<std::string, std::string>>;

// Counts values by size. Thread contract: everything from any thread.
class Histogram {
 public:
  // bounds: of the buckets, increasing; a value is in the first one whose bound it does not exceed.
  explicit Histogram(std::vector<double> bounds) : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}

  void observe(double value);

  const std::vector<double>& bounds() const { return bounds_; }
  std::vector<std::uint64_t> counts() const;  // by bucket; the last is of values beyond all bounds
  double sum() const { return sum_.load(std::memory_order_relaxed); }

 private:
  std::vector<double> bounds_;
  std::vector<std::atomic<std::uint64_t>> counts_;
  std::atomic<double> sum_ = 0;
};

// 1, 2, 5, 10, 20, 50, … up to `most`.
std::vector<double> bounds_up_to(int most);

// Writes Prometheus' text format, version 0.0.4.
class PrometheusText {
 public:
  static constexpr std::string_view kContentType = "text/plain; version=0.0.4; charset=utf-8";

  // labels: every sample has them, beside its own.
  explicit PrometheusText(Labels labels) : labels_(std::move(labels)) {}

  // A value, and the labels that it has beside those of all.
  struct Sample {
    template <typename Number>
    Sample(Number number, Labels own = {}) : value(static_cast<double>(number)), labels(std::move(own)) {}
    double value;
    Labels labels;
  };
  struct Counted {
    const Histogram& histogram;
    Labels labels = {};
  };
  void gauge(std::string_view name, std::string_view help, const std::vector<Sample>& samples) {
    metric(name, "gauge", help, samples);
  }
  void counter(std::string_view name, std::string_view help, const std::vector<Sample>& samples) {
    metric(name, "counter", help, samples);
  }
  void histogram(std::string_view name, std::string_view help, const std::vector<Counted>& histograms);

  std::string take() { return std::move(text_); }

 private:
  void metric(std::string_view name, std::string_view type, std::string_view help,
              const std::vector<Sample>& samples);
  void sample(std::string_view name, const Sample& sample);

  Labels labels_;
  std::string text_;
};

}  // namespace quire::server
