#pragma once

#include <charconv>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>

namespace quire::server::test {

using LabelMap = std::map<std::string, std::string>;

// What a scrape has found. A strict reader of the text format, version 0.0.4, by its specification.
struct Scrape {
  std::map<std::string, std::string> types;                   // by family
  std::map<std::string, std::map<LabelMap, double>> samples;  // by name

  // The one sample of that name that has these labels among its own.
  double value(const std::string& name, const LabelMap& labels = {}) const {
    const auto found = samples.find(name);
    if (found == samples.end()) throw std::out_of_range("no sample " + name);
    const double* value = nullptr;
    for (const auto& [all, sample] : found->second) {
      bool has_all = true;
      for (const auto& [label, text] : labels) has_all &= all.contains(label) && all.at(label) == text;
      if (!has_all) continue;
      if (value != nullptr) throw std::runtime_error("several samples of " + name);
      value = &sample;
    }
    if (value == nullptr) throw std::out_of_range("no sample of " + name + " with these labels");
    return *value;
  }
  double bucket(const std::string& name, const std::string& bound) const {
    return value(name + "_bucket", {{"le", bound}});
  }
};

class PrometheusParser {
 public:
  explicit PrometheusParser(std::string_view text) : text_(text) {}

  Scrape parse() {
    while (!text_.empty()) {
      const std::size_t end = text_.find('\n');
      if (end == std::string_view::npos) throw std::runtime_error("the last line has no end");
      line_ = text_.substr(0, end);
      text_.remove_prefix(end + 1);
      if (line_.starts_with("# "))
        comment();
      else
        sample();
    }
    return std::move(scrape_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw std::runtime_error(what + " before: " + std::string(line_));
  }
  void expect(char c) {
    if (!line_.starts_with(c)) fail(std::string("no ") + c);
    line_.remove_prefix(1);
  }
  std::string name() {
    std::size_t size = 0;
    const auto belongs = [&](char c) {
      const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == ':';
      return is_letter || (size > 0 && c >= '0' && c <= '9');
    };
    while (size < line_.size() && belongs(line_[size])) ++size;
    if (size == 0) fail("no name");
    std::string name(line_.substr(0, size));
    line_.remove_prefix(size);
    return name;
  }

  // HELP and TYPE of a family, in that order, before its samples.
  void comment() {
    line_.remove_prefix(2);
    const std::string keyword = name();
    expect(' ');
    const std::string of = name();
    expect(' ');
    if (keyword == "HELP") {
      if (scrape_.types.contains(of)) fail("a second HELP");
      family_ = of;
    } else if (keyword == "TYPE") {
      if (of != family_) fail("TYPE of another family");
      if (line_ != "counter" && line_ != "gauge" && line_ != "histogram") fail("not a type");
      if (!scrape_.types.emplace(of, line_).second) fail("a second TYPE");
    } else {
      fail("no comment of ours");
    }
  }

  std::string label_text() {
    std::string text;
    expect('"');
    while (!line_.starts_with('"')) {
      if (line_.empty()) fail("a label without end");
      char c = line_.front();
      line_.remove_prefix(1);
      if (c == '\\') {
        if (line_.empty()) fail("an escape without end");
        c = line_.front() == 'n' ? '\n' : line_.front();
        if (std::string_view("n\\\"").find(line_.front()) == std::string_view::npos) fail("no escape");
        line_.remove_prefix(1);
      }
      text += c;
    }
    expect('"');
    return text;
  }

  double number() {
    if (line_ == "+Inf") return std::numeric_limits<double>::infinity();
    double value = 0;
    const auto [end, error] = std::from_chars(line_.data(), line_.data() + line_.size(), value);
    if (error != std::errc() || end != line_.data() + line_.size()) fail("not a number");
    return value;
  }

  void sample() {
    const std::string of = name();
    const bool is_histogram = scrape_.types[family_] == "histogram";
    const bool belongs = is_histogram
                             ? of == family_ + "_bucket" || of == family_ + "_sum" || of == family_ + "_count"
                             : of == family_;
    if (!belongs) fail("a sample " + of + " in the family " + family_);
    LabelMap labels;
    if (line_.starts_with('{')) {
      expect('{');
      while (true) {
        const std::string label = name();
        expect('=');
        if (!labels.emplace(label, label_text()).second) fail("a label twice");
        if (!line_.starts_with(',')) break;
        expect(',');
      }
      expect('}');
    }
    expect(' ');
    if (!scrape_.samples[of].emplace(labels, number()).second) fail("a sample twice");
  }

  std::string_view text_;
  std::string_view line_;
  std::string family_;
  Scrape scrape_;
};

inline Scrape scrape(const std::string& text) { return PrometheusParser(text).parse(); }

}  // namespace quire::server::test
