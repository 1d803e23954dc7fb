// Time and truth of masks over files of {"schema": ..., "tests": [{"valid": ..., "data": ...}]}, as MaskBench
// has them (guidance-ai/jsonschemabench, maskbench/data), or over lists of {"schema", "tests"}, as
// JSON-Schema-Test-Suite has them. One thread. Usage: maskbench TOKENIZER.json DIRECTORY [--in-order] [-v]
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "grammar/grammar.h"
#include "tokenizer/tokenizer.h"

namespace {

using quire::OrderedJson;
using quire::grammar::Matcher;

struct Totals {
  std::vector<double> mask_us, compile_us;
  std::size_t schemas = 0, passing = 0, refused = 0, wrong_accepts = 0, wrong_rejects = 0, broken = 0;
};

// Of the processor, spent by this thread: other work on the machine does not count.
double microseconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) / 1e3;
}

std::shared_ptr<const quire::grammar::Vocabulary> vocabulary_of(const quire::Tokenizer& tokenizer) {
  std::vector<quire::grammar::TokenText> tokens;
  int end = -1;
  for (int id = 0; id < tokenizer.vocab_size(); ++id) {
    tokens.push_back({tokenizer.token_bytes(id), tokenizer.is_special(id)});
    if (tokenizer.is_special(id)) end = id;
  }
  if (end < 0) quire::fail("the tokenizer has no special token to end a text with");
  return std::make_shared<quire::grammar::Vocabulary>(std::move(tokens), std::vector<int>{end});
}

class Bench {
 public:
  Bench(const std::string& tokenizer, bool any_order, bool verbose)
      : tokenizer_(quire::Tokenizer::from_file(tokenizer)),
        vocabulary_(vocabulary_of(tokenizer_)),
        any_order_(any_order),
        verbose_(verbose) {
    mask_.resize(vocabulary_->mask_words());
  }

  void run(const OrderedJson& schema, const OrderedJson& tests, const std::string& name) {
    ++totals_.schemas;
    std::shared_ptr<const quire::grammar::Grammar> grammar;
    const double start = microseconds();
    try {
      grammar = quire::grammar::compile({.source = schema.dump(), .any_order = any_order_}, vocabulary_);
      const Matcher first(grammar);  // makes the states that matchers share
    } catch (const quire::Error& error) {
      ++totals_.refused;
      if (verbose_) std::printf("%s: refused: %s\n", name.c_str(), error.what());
      return;
    }
    totals_.compile_us.push_back(microseconds() - start);
    if (verbose_ && totals_.compile_us.back() > 20'000)
      std::printf("%s: compiled in %.0f us\n", name.c_str(), totals_.compile_us.back());
    bool right = true;
    for (const auto& test : tests) right = run(grammar, test, name) && right;
    totals_.passing += right;
  }

  void print() {
    const auto show = [](const char* what, std::vector<double>& times) {
      if (times.empty()) return;
      std::ranges::sort(times);
      double sum = 0;
      for (const double time : times) sum += time;
      const auto at = [&](double part) {
        return times[static_cast<std::size_t>(part * static_cast<double>(times.size() - 1))];
      };
      std::printf("%s us: mean %.1f p50 %.1f p90 %.1f p99 %.1f p99.9 %.1f max %.1f (%zu)\n", what,
                  sum / static_cast<double>(times.size()), at(0.5), at(0.9), at(0.99), at(0.999),
                  times.back(), times.size());
    };
    show("compile", totals_.compile_us);
    show("mask", totals_.mask_us);
    std::printf("schemas %zu, passing %zu, refused %zu, wrong accepts %zu, wrong rejects %zu, errors %zu\n",
                totals_.schemas, totals_.passing, totals_.refused, totals_.wrong_accepts,
                totals_.wrong_rejects, totals_.broken);
  }

 private:
  // Whether the grammar judges an instance as the test says.
  bool run(const std::shared_ptr<const quire::grammar::Grammar>& grammar, const OrderedJson& test,
           const std::string& name) {
    const std::string text = spaced(test.at("data"));
    const bool valid = test.at("valid").get<bool>();
    std::size_t done = 0;
    try {
      const auto tokens = encode(text);
      Matcher matcher(grammar);
      for (const int token : tokens) {
        const double start = microseconds();
        matcher.fill_mask(mask_);
        const bool accepted = matcher.accept(token);
        totals_.mask_us.push_back(microseconds() - start);
        if (verbose_ && totals_.mask_us.back() > 30'000)
          std::printf("%s: mask in %.0f us after %zu tokens of %s\n", name.c_str(), totals_.mask_us.back(),
                      done, text.substr(0, 200).c_str());
        const bool in_mask = (mask_[static_cast<std::size_t>(token) / 32] >> token % 32 & 1) != 0;
        if (in_mask != accepted)
          quire::fail("the mask and accept disagree about token {} after {} tokens", token, done);
        if (!accepted) break;
        ++done;
      }
      const bool judged = done == tokens.size() && matcher.complete();
      if (judged == valid) return true;
      ++(valid ? totals_.wrong_rejects : totals_.wrong_accepts);
      if (verbose_)
        std::printf("%s: wrong %s of %s after %zu of %zu tokens\n", name.c_str(), valid ? "reject" : "accept",
                    text.substr(0, 600).c_str(), done, tokens.size());
    } catch (const quire::Error& error) {
      ++totals_.broken;
      if (verbose_)
        std::printf("%s: error after %zu tokens of %s: %s\n", name.c_str(), done, text.substr(0, 300).c_str(),
                    error.what());
    }
    return false;
  }

  // As a model writes it behind a prompt: without the space that some tokenizers put in front of a text.
  std::vector<quire::TokenId> encode(const std::string& text) const {
    const auto line = tokenizer_.encode("\n", false), both = tokenizer_.encode("\n" + text, false);
    if (both.size() < line.size() || !std::equal(line.begin(), line.end(), both.begin()))
      return tokenizer_.encode(text, false);
    return {both.begin() + static_cast<std::ptrdiff_t>(line.size()), both.end()};
  }

  // As Python writes JSON by default: a space behind commas and colons.
  static std::string spaced(const OrderedJson& value) {
    if (!value.is_structured()) return value.dump();
    std::string text;
    for (const auto& [key, item] : value.items()) {
      if (!text.empty()) text += ", ";
      if (value.is_object()) text += OrderedJson(key).dump() + ": ";
      text += spaced(item);
    }
    return value.is_object() ? "{" + text + "}" : "[" + text + "]";
  }

  quire::Tokenizer tokenizer_;
  std::shared_ptr<const quire::grammar::Vocabulary> vocabulary_;
  bool any_order_, verbose_;
  std::vector<std::uint32_t> mask_;
  Totals totals_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: maskbench TOKENIZER.json DIRECTORY [--in-order] [-v]\n");
    return 2;
  }
  try {
    const std::vector<std::string> options(argv + 3, argv + argc);
    const auto has = [&](const char* option) { return std::ranges::find(options, option) != options.end(); };
    Bench bench(argv[1], !has("--in-order"), has("-v"));
    std::vector<std::filesystem::path> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(argv[2]))
      if (entry.path().extension() == ".json") files.push_back(entry.path());
    std::ranges::sort(files);
    for (const auto& file : files) {
      const OrderedJson content = quire::parse_ordered_json(quire::read_text_file(file, std::size_t{1} << 26),
                                                            file.string(), {.max_depth = 1000});
      const std::string name = file.stem().string();
      if (content.is_object())
        bench.run(content.at("schema"), content.at("tests"), name);
      else
        for (const auto& group : content)
          bench.run(group.at("schema"), group.at("tests"),
                    name + ": " + group.at("description").get<std::string>());
    }
    bench.print();
  } catch (const quire::Error& error) {
    std::fprintf(stderr, "maskbench: %s\n", error.what());
    return 2;
  }
  return 0;
}
