#include "inspect/techniques.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "backends/registry.h"
#include "base/error.h"
#include "expect_error.h"
#include "inspect/plain_loops.h"
#include "inspect/small_shape.h"
#include "inspect/well_formed.h"

namespace quire {
namespace {

using test::small_shape;

// Of a prompt's length and an output's, which differ from request to request.
std::vector<EngineRequest> ragged_requests() {
  std::vector<EngineRequest> requests;
  for (const auto& [in, out] :
       std::vector<std::pair<int, int>>{{3, 9}, {40, 2}, {17, 1}, {16, 20}, {33, 5}}) {
    EngineRequest& request = requests.emplace_back(sized_request({}, out));
    for (int i = 0; i < in; ++i) request.prompt.push_back((7 * i + 31 * in) % 300);
  }
  return requests;
}

EngineConfig small_config() {
  EngineConfig config;
  config.device = "cpu";
  config.cpu_threads = 1;
  config.max_num_batched_tokens = 200;
  config.max_model_len = 48;
  return config;
}

Round engine_round(const Shape& shape, const std::vector<EngineRequest>& requests) {
  Engine engine(small_config(), random_model(shape));
  return run_round(engine, requests);
}

void expect_same_tokens(const Round& expected, const Round& round) {
  ASSERT_EQ(expected.outputs.size(), round.outputs.size());
  for (std::size_t i = 0; i < round.outputs.size(); ++i) {
    EXPECT_EQ(expected.outputs[i].tokens, round.outputs[i].tokens) << i;
    EXPECT_EQ(round.outputs[i].times.size(), round.outputs[i].tokens.size() + 1) << i;
  }
}

// Blocks are full of NaN until something is written to them for their sequence.
TEST(PlainLoopsTest, EveryWayGivesTheEnginesTokens) {
  const std::vector<EngineRequest> requests = ragged_requests();
  for (const Shape& shape :
       {small_shape(), small_shape("Qwen3MoeForCausalLM", R"({"num_experts": 5, "num_experts_per_tok": 2})"),
        small_shape("Gemma3ForCausalLM", R"({"sliding_window": 16, "head_dim": 16,
                                            "layer_types": ["sliding_attention", "full_attention"]})")}) {
    SCOPED_TRACE(shape.config);
    const Round expected = engine_round(shape, requests);
    std::set<std::vector<TokenId>> different;
    for (const TimedOutput& output : expected.outputs) different.insert(output.tokens);
    EXPECT_EQ(different.size(), requests.size())
        << "outputs that do not depend on their prompts show nothing";
    for (const int batch : {1, 2, 5}) {
      SCOPED_TRACE(batch);
      EngineConfig config = small_config();
      config.kv_cache_memory = std::size_t{1} << 20;
      PlainLoops loops(config, random_model(shape), batch, {.poison_blocks = true});
      expect_same_tokens(expected, loops.run_in_batches(requests));
      if (batch == 1) expect_same_tokens(expected, loops.run_without_cache(requests));
    }
  }
}

TEST(PlainLoopsTest, ABatchWaitsForItsLongestOutput) {
  const std::vector<EngineRequest> requests = ragged_requests();
  EngineConfig config = small_config();
  config.kv_cache_memory = std::size_t{1} << 20;
  PlainLoops loops(config, random_model(small_shape()), 2);
  const Round round = loops.run_in_batches(requests);
  for (const std::size_t first : {0U, 2U}) {
    for (const std::size_t member : {first, first + 1})
      EXPECT_GT(round.outputs[first + 2].times[1], round.outputs[member].times.back());
  }
}

TEST(RequestRoundTest, OthersComeWhenTheFirstAreUnderWay) {
  Engine engine(small_config(), random_model(small_shape()));
  std::vector<EngineRequest> requests(3);
  for (EngineRequest& request : requests) {
    request.prompt = {1, 2, 3};
    request.params.max_tokens = 8;
    request.params.ignore_eos = true;
  }
  const Round round = run_round(engine, std::move(requests), {}, 2);
  for (const std::size_t first : {0U, 1U})
    EXPECT_GT(round.outputs[2].times[0], round.outputs[first].times[2]);
}

TimedOutput output_of(std::vector<TokenId> tokens) { return {std::move(tokens), {}}; }

TEST(CompareOutputsTest, ATokenThatDiffersIsAFaultWhereNoneMay) {
  const std::vector<TimedOutput> baseline = {output_of({1, 2, 3}), output_of({4, 5, 6, 7, 8})};
  const auto compared = [&](std::vector<TokenId> second, bool must_agree) {
    TechniqueRow row;
    compare_outputs(baseline, std::vector{baseline[0], output_of(std::move(second))}, must_agree, row);
    return row;
  };
  EXPECT_EQ(compared({4, 5, 6, 7, 8}, true).agreement, 1);
  EXPECT_EQ(compared({4, 5, 6, 7, 8}, true).difference, "");
  EXPECT_EQ(compared({4, 5, 9, 7, 8}, true).agreement, 5.0 / 8);
  EXPECT_EQ(compared({4, 5, 9, 7, 8}, true).difference, "output 2 differs from its token 3 on");
  EXPECT_EQ(compared({4, 5, 9, 7, 8}, false).difference, "");
  EXPECT_EQ(compared({4, 5, 6, 7}, true).difference, "output 2 differs from its token 5 on");
  EXPECT_EQ(compared({4, 5, 6, 7, 8, 9}, true).difference, "output 2 differs from its token 6 on");
}

TechniqueReport small_report(std::function<ModelFiles()> open) {
  TechniqueOptions options{.engine = small_config(), .open = std::move(open)};
  options.num_prompts = 12;
  options.batch = 3;
  options.input_len = 16;
  options.output_len = 24;
  std::size_t most = 0;
  options.on_progress = [&](std::size_t done, std::size_t total) {
    EXPECT_LE(done, total);
    most = std::max(most, done == total ? done : 0);
  };
  const TechniqueReport report = measure_techniques(options);
  EXPECT_GT(most, 0U) << "the bar is never full";
  return report;
}

TEST(TechniquesTest, EveryRowHasTheTokensAndTheFigureThatItIsAbout) {
  const TechniqueReport report = small_report([] { return random_model(small_shape()); });
  const bool packs = resolved_cpu_isa("auto") != "reference";
  std::map<std::string, TechniqueRow> rows;
  for (const TechniqueRow& row : report.rows) {
    SCOPED_TRACE(row.name);
    EXPECT_TRUE(rows.emplace(row.name, row).second);
    const bool is_packed = row.name.find("packed") != std::string::npos;
    EXPECT_EQ(!row.skipped.empty(), row.name == "graphs" || (is_packed && !packs)) << row.skipped;
    if (!row.skipped.empty()) continue;
    EXPECT_EQ(row.difference, "");
    EXPECT_GT(row.value(), 0);
    EXPECT_EQ(std::isnan(row.factor), row.against.empty());
    EXPECT_TRUE(!std::isnan(row.agreement) || row.against.empty());
    const bool rounds = row.name.find("8-bit") == 0 || row.name.find("4-bit") == 0;
    if (row.against.empty()) continue;
    EXPECT_TRUE(rounds || row.agreement == 1) << row.agreement;
    ASSERT_TRUE(rows.contains(row.against)) << row.against;
    const TechniqueRow& before = rows.at(row.against);
    EXPECT_EQ(before.workload, row.workload);
    const double ratio = row.value() / before.value(row.figure);
    EXPECT_DOUBLE_EQ(row.factor, row.figure.ends_with("_ms") ? 1 / ratio : ratio);
  }
  EXPECT_EQ(rows.size(), 16U);
  // What does not depend on the machine's speed.
  EXPECT_EQ(rows.at("no KV cache").value("kv_cache_bytes"), 0);
  EXPECT_EQ(rows.at("static batches, padded").value("kv_cache_bytes"),
            3 * rows.at("KV cache, one at a time").value("kv_cache_bytes"));
  EXPECT_EQ(rows.at("continuous batching").value("kv_cache_bytes"),
            rows.at("static batches, padded").value("kv_cache_bytes"));
  EXPECT_EQ(rows.at("paged KV cache").value("kv_cache_bytes"),
            rows.at("continuous batching").value("kv_cache_bytes"));
  EXPECT_LE(rows.at("8-bit KV cache").value("kv_cache_bytes"),
            rows.at("paged KV cache").value("kv_cache_bytes"));
  EXPECT_EQ(rows.at("continuous batching").value("sequences"), 3);
  EXPECT_GT(rows.at("paged KV cache").value("sequences"), 3);
  EXPECT_GT(rows.at("8-bit KV cache").value("sequences"), rows.at("paged KV cache").value("sequences"));
  EXPECT_LT(rows.at("8-bit weights").value("weight_bytes"),
            rows.at("bfloat16 weights").value("weight_bytes"));
  // The reference fills groups up to 128 columns, which are more than this model has.
  if (packs) {
    EXPECT_LT(rows.at("4-bit weights").value("weight_bytes"), rows.at("8-bit weights").value("weight_bytes"));
  }
}

// As a loop does that is wrong: the fourth model opened, that of static batches, is another one.
TEST(TechniquesTest, ARowWithOtherTokensIsNoticed) {
  int num_opened = 0;
  const TechniqueReport report = small_report([&] {
    return random_model(small_shape("Qwen3ForCausalLM",
                                    ++num_opened == 4 ? R"({"rope_theta": 7})" : R"({"rope_theta": 10000})"));
  });
  for (const TechniqueRow& row : report.rows) {
    const bool is_wrong = row.name == "static batches, padded";
    EXPECT_EQ(row.difference.starts_with("output "), is_wrong) << row.name << row.difference;
    EXPECT_TRUE(!is_wrong || row.agreement < 1) << row.agreement;
  }
}

TEST(TechniquesTest, WhatCannotBeMeasuredIsRefusedByName) {
  const auto measure = [](const Shape& shape, auto change) {
    TechniqueOptions options{.engine = small_config(), .open = [&] { return random_model(shape); }};
    change(options);
    measure_techniques(options);
  };
  expect_error([&] { measure(small_shape(), [](auto& o) { o.num_prompts = 4; }); },
               {"--batch is 8", "4 requests"});
  expect_error([&] { measure(small_shape(), [](auto& o) { o.input_len = 60000; }); },
               {"--input-len", "480016 tokens", "context is"});
  expect_error([&] { measure(small_shape("Lfm2ForCausalLM", R"({"full_attn_idxs": [1]})"), [](auto&) {}); },
               {"Lfm2ForCausalLM", "state of fixed size"});
}

TEST(TechniquePlotTest, IsWellFormedAndHasARowEach) {
  TechniqueReport report{
      .device = "cpu", .dtype = "bfloat16", .workloads = {"a & b < c", "others"}, .rows = {}};
  const auto add = [&](std::string name, std::size_t workload, double speed, std::string against,
                       double factor) {
    TechniqueRow row{.name = std::move(name), .against = std::move(against), .workload = workload};
    row.figures["tokens_per_s"] = speed;
    row.factor = factor;
    report.rows.push_back(std::move(row));
  };
  add("slow", 0, 2, "", std::nan(""));
  add("fast", 0, 16, "slow", 8);
  add("other", 1, 5, "", std::nan(""));
  add("worse", 1, 4, "other", 0.8);
  add("absent", 1, std::nan(""), "other", std::nan(""));
  report.rows.back().skipped = "there is none";
  const std::string svg = technique_plot("toy <1> & \"2\"", report);
  test::expect_well_formed(svg);
  for (const char* words :
       {"toy &lt;1&gt; &amp;", "a &amp; b &lt; c", ">2 tokens/s<", "×8   2 → 16 tokens/s",
        "×0.8   5 → 4 tokens/s", ">absent<", ">not measured<", "prefers-color-scheme: dark"})
    EXPECT_NE(svg.find(words), std::string::npos) << words;
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  // The longest bar is that of the largest factor, and one below one goes to the left.
  EXPECT_NE(svg.find("class=\"up\" x=\"250.0\" y=\"93.0\" width=\"300.0\""), std::string::npos) << svg;
  EXPECT_NE(svg.find("class=\"down\" x=\"220.0\""), std::string::npos) << svg;
}

}  // namespace
}  // namespace quire
