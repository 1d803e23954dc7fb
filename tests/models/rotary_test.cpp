// Expected values: transformers 5.17, ROPE_INIT_FUNCTIONS, over heads of 32 dimensions.
#include "models/rotary.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "base/error.h"
#include "models/model.h"

namespace quire {
namespace {

RotaryFrequencies frequencies_of(const std::string& rope_scaling, const std::string& theta = "10000.0",
                                 int max_model_len = 512) {
  const std::string text = R"({"architectures": ["X"], "max_position_embeddings": 512, "rope_theta": )" +
                           theta + R"(, "rope_scaling": )" + rope_scaling + "}";
  return rotary_frequencies(ModelConfig::from_json(text, "config.json").rotary(1.0), 32, max_model_len);
}

void expect_frequencies(const RotaryFrequencies& actual, const std::vector<double>& expected,
                        double scaling) {
  ASSERT_EQ(actual.inverse_frequencies.size(), expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(actual.inverse_frequencies[i], expected[i], 3e-7 * expected[i]) << "pair " << i;
  }
  EXPECT_NEAR(actual.attention_scaling, scaling, 1e-6);
}

TEST(RotaryFrequenciesTest, LinearDividesByTheFactor) {
  expect_frequencies(
      frequencies_of(R"({"type": "linear", "factor": 4.0})"),
      {0.25, 0.14058533310890198, 0.07905694097280502, 0.04445698484778404, 0.02500000037252903,
       0.014058532193303108, 0.007905694656074047, 0.004445698577910662, 0.0024999999441206455,
       0.0014058533124625683, 0.0007905694656074047, 0.00044456985779106617, 0.0002500000118743628,
       0.00014058532542549074, 7.905694656074047e-05, 4.4456985051510856e-05},
      1.0);
}

// The first quarter of 16 pairs, as fast as in a head that turns whole.
TEST(RotaryFrequenciesTest, ProportionalTurnsTheFirstPairsOfTheWholeHead) {
  std::vector<double> expected(16);
  for (int pair = 0; pair < 4; ++pair)
    expected[static_cast<std::size_t>(pair)] = std::pow(10000.0, -2.0 * pair / 32);
  expect_frequencies(frequencies_of(R"({"rope_type": "proportional", "partial_rotary_factor": 0.25})"),
                     expected, 1.0);
  for (double& frequency : expected) frequency /= 8;
  expect_frequencies(
      frequencies_of(R"({"rope_type": "proportional", "partial_rotary_factor": 0.25, "factor": 8})"),
      expected, 1.0);
}

TEST(RotaryFrequenciesTest, YarnKeepsHighFrequenciesAndStretchesLowOnes) {
  expect_frequencies(
      frequencies_of(R"({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128})"),
      {1.0, 0.4920486509799957, 0.23717081546783447, 0.11114246398210526, 0.04999999701976776,
       0.021087799221277237, 0.007905694656074047, 0.004445698577910662, 0.0024999999441206455,
       0.0014058533124625683, 0.0007905694656074047, 0.00044456985779106617, 0.0002500000118743628,
       0.00014058532542549074, 7.905694656074047e-05, 4.4456985051510856e-05},
      1.138629436111989);
}

TEST(RotaryFrequenciesTest, YarnTakesItsOwnRampAndScaling) {
  expect_frequencies(
      frequencies_of(R"({"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64,
                                        "attention_factor": 1.5, "beta_fast": 16.0, "beta_slow": 2.0})",
                     "1000000.0"),
      {1.0, 0.23720428347587585, 0.02222849242389202, 0.009373676963150501, 0.0039528473280370235,
       0.0016669018659740686, 0.0007029266562312841, 0.00029642172739841044, 0.0001250000059371814,
       5.271206100587733e-05, 2.2228492525755428e-05, 9.373678039992228e-06, 3.9528467823402025e-06,
       1.6669017668391461e-06, 7.029266839708725e-07, 2.964217173939687e-07},
      1.5);
}

TEST(RotaryFrequenciesTest, YarnWithMscaleAndWithoutTruncation) {
  expect_frequencies(
      frequencies_of(R"({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128,
                                        "mscale": 0.7, "mscale_all_dim": 0.5, "truncate": false})"),
      {1.0, 0.48179391026496887, 0.22563748061656952, 0.10141395032405853, 0.04270566999912262,
       0.015960419550538063, 0.007905694656074047, 0.004445698577910662, 0.0024999999441206455,
       0.0014058533124625683, 0.0007905694656074047, 0.00044456985779106617, 0.0002500000118743628,
       0.00014058532542549074, 7.905694656074047e-05, 4.4456985051510856e-05},
      1.0259286501478284);
}

// DeepSeek-R1-0528-Qwen3-8B has it so that 1 is left: vLLM multiplies by it, transformers does not.
TEST(RotaryFrequenciesTest, YarnsDerivedScalingIsMultipliedByAttnFactor) {
  const std::string yarn = R"({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128,
                               "attn_factor": 0.8782488562869419)";
  EXPECT_FLOAT_EQ(frequencies_of(yarn + "}").attention_scaling, 1);
  EXPECT_FLOAT_EQ(frequencies_of(yarn + R"(, "attention_factor": 1.5})").attention_scaling, 1.5F);
}

// Of 64 positions: waves shorter than 16 stay, those longer than 64 are divided by 8.
TEST(RotaryFrequenciesTest, Llama3StretchesLongWaves) {
  const auto plain = frequencies_of(R"({"rope_type": "default"})", "500000.0").inverse_frequencies;
  const RotaryFrequencies actual = frequencies_of(
      R"({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 64})",
      "500000.0");
  int stretched = 0, between = 0;
  for (std::size_t i = 0; i < plain.size(); ++i) {
    const double wave = 2 * std::numbers::pi / plain[i];
    const float ratio = actual.inverse_frequencies[i] / plain[i];
    if (wave < 16) {
      EXPECT_EQ(ratio, 1.0F) << i;
    } else if (wave > 64) {
      EXPECT_EQ(ratio, 0.125F) << i;
      ++stretched;
    } else {
      const double kept = (64 / wave - 1) / 3;
      EXPECT_NEAR(ratio, kept + (1 - kept) / 8, 1e-6) << i;
      ++between;
    }
  }
  EXPECT_GT(stretched, 0);
  EXPECT_GT(between, 0);
  EXPECT_EQ(actual.attention_scaling, 1.0F);
}

TEST(RotaryFrequenciesTest, LongropeTakesItsLongFactorsWhereSequencesAreLong) {
  const std::string rope = R"({"rope_type": "longrope", "original_max_position_embeddings": 128,
      "short_factor": [2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2],
      "long_factor": [4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 8]})";
  const auto plain = frequencies_of(R"({"rope_type": "default"})").inverse_frequencies;
  EXPECT_EQ(frequencies_of(rope, "10000.0", 128).inverse_frequencies[3], plain[3] / 2);
  const RotaryFrequencies stretched = frequencies_of(rope, "10000.0", 129);
  EXPECT_EQ(stretched.inverse_frequencies[3], plain[3] / 4);
  EXPECT_EQ(stretched.inverse_frequencies[15], plain[15] / 8);
  // Four times as many positions: sqrt(1 + ln(4) / ln(128)).
  EXPECT_NEAR(stretched.attention_scaling, 1.133893, 1e-6);
  EXPECT_NEAR(frequencies_of(rope, "10000.0", 128).attention_scaling, 1.133893, 1e-6);
}

TEST(RotaryFrequenciesTest, LongropeNeedsAFactorForEveryPair) {
  EXPECT_THROW(frequencies_of(R"({"rope_type": "longrope", "original_max_position_embeddings": 128,
                                  "short_factor": [2], "long_factor": [4]})"),
               Error);
}

// 10000 * 1000^(32 / 30), as Hunyuan's files have it; without alpha the type is refused.
TEST(RotaryFrequenciesTest, AlphaChangesTheBaseOnceAndForAll) {
  const auto changed = frequencies_of(R"({"rope_type": "dynamic", "alpha": 1000.0})").inverse_frequencies;
  const double base = 1e4 * std::pow(1000.0, 32.0 / 30.0);
  for (std::size_t i = 0; i < changed.size(); ++i)
    EXPECT_NEAR(changed[i] * std::pow(base, static_cast<double>(i) / 16), 1, 1e-5) << i;
}

TEST(RotaryFrequenciesTest, OtherTypesAreRefusedByName) {
  try {
    frequencies_of(R"({"rope_type": "dynamic", "factor": 2.0})");
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("\"dynamic\""), std::string::npos);
  }
}

TEST(RotaryFrequenciesTest, ScalingMakesTheContextLonger) {
  ModelConfig::RotaryConfig rotary;
  rotary.type = "default";
  EXPECT_EQ(scaled_max_positions(rotary, 512), 512);
  rotary.type = "linear";
  rotary.factor = 4;
  EXPECT_EQ(scaled_max_positions(rotary, 512), 2048);
  rotary.type = "yarn";
  rotary.original_max_position_embeddings = 128;
  EXPECT_EQ(scaled_max_positions(rotary, 512), 512);
}

TEST(ModelRegistryTest, AnUnknownArchitectureNamesTheKnownOnes) {
  try {
    find_model_family("GPT5LMHeadModel");
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("Qwen3ForCausalLM"), std::string::npos);
  }
}

}  // namespace
}  // namespace quire
