#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "base/json.h"
#include "cli/run_program.h"
#include "temp_dir.h"

namespace quire {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::ProgramResult;
using testing::run_quire;
using testing::run_shell;
using ::testing::StartsWith;

const std::string kGolden = std::string(QUIRE_SOURCE_DIR) + "/tests/golden/qwen3";
const std::string kToy = std::string(QUIRE_SOURCE_DIR) + "/models/toy";

// One line on stderr, exit code 2, nothing on stdout.
void expect_mistake(const ProgramResult& result, const std::string& what) {
  EXPECT_EQ(result.code, 2) << result.err;
  EXPECT_THAT(result.err, AllOf(StartsWith("quire: "), HasSubstr(what)));
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_EQ(result.out, "");
}

TEST(CliTest, EveryCommandHasHelp) {
  EXPECT_THAT(run_quire("--help").out, HasSubstr("generate"));
  for (const std::string command :
       {"chat", "generate", "bench throughput", "bench latency", "bench agent", "plan", "verify",
        "eval perplexity", "quantize", "tokenize", "detokenize", "render"}) {
    const ProgramResult result = run_quire(command + " --help");
    EXPECT_EQ(result.code, 0);
    EXPECT_THAT(result.out, HasSubstr("Options:"));
  }
}

TEST(CliTest, WrongFlagsAreOneLineAndCodeTwo) {
  expect_mistake(run_quire(""), "subcommand");
  expect_mistake(run_quire("dance"), "dance");
  expect_mistake(run_quire("generate --no-such-flag"), "--no-such-flag");
  expect_mistake(run_quire("generate -p hi --max-tokens many"), "--max-tokens");
  expect_mistake(run_quire("generate -p hi --temperature -1"), "temperature");
  expect_mistake(run_quire("generate -p hi --temperature nan"), "temperature");
  expect_mistake(run_quire("generate -p hi --top-p 1.5"), "top_p");
  expect_mistake(run_quire("generate -p hi --max-tokens 0"), "max_tokens is 0");
  expect_mistake(run_quire("generate -p hi --presence-penalty 3"), "presence_penalty is 3");
  expect_mistake(run_quire("generate -p hi --logit-bias 5"), "--logit-bias");
  expect_mistake(run_quire("generate -p hi --logit-bias 99999:1"), "logit_bias has 99999");
  expect_mistake(run_quire("generate -p hi --allowed-token-ids 1,x"), "--allowed-token-ids");
  expect_mistake(run_quire("generate -p hi --logprobs 1"), "--json");
  expect_mistake(run_quire("generate -p hi --json --logprobs 21"), "logprobs is 21");
  expect_mistake(run_quire("generate -p hi --json --logprobs x"), "--logprobs");
  expect_mistake(run_quire("generate -p hi --max-logprobs 513"), "max-logprobs");
  expect_mistake(run_quire("generate -p hi --beam-width 0"), "beam_width is 0");
  expect_mistake(run_quire("generate -p hi --beam-width 4 --stream"), "--beam-width");
  expect_mistake(run_quire("generate -p hi --beam-width 4 --early-stopping often"), "--early-stopping");
  expect_mistake(run_quire("generate -p hi --truncate-prompt-tokens 0"), "truncate_prompt_tokens is 0");
  expect_mistake(run_quire("generate -p hi --json --no-detokenize --stop x"), "detokenize");
  expect_mistake(run_quire("generate -p hi --kv-cache-memory lots"), "--kv-cache-memory");
  expect_mistake(run_quire("generate -p hi --swap-space -1"), "swap-space is -1");
  expect_mistake(run_quire("generate -p hi --swap-space 1e-9"), "one takes");
  expect_mistake(run_quire("generate -p hi --swap-space 1e9"), "this machine's memory");
  expect_mistake(run_quire("generate -p hi --swap-space much"), "--swap-space");
  expect_mistake(run_quire("generate -p hi --preemption-mode swap"), "swap-space");
  expect_mistake(run_quire("generate -p hi --preemption-mode drop"), "recompute");
  expect_mistake(run_quire("generate -p hi --dtype int4"), "float16");
  expect_mistake(run_quire("generate -p hi --block-size 10"), "power of two");
  expect_mistake(run_quire("generate --prompt-ids 1,x"), "--prompt-ids");
  expect_mistake(run_quire("generate --prompt-ids 1,99999999"), "99999999");
  expect_mistake(run_quire("generate"), "no prompt");
  expect_mistake(run_quire("plan --memory lots"), "--memory");
  for (const std::string size : {"-1", "-1B", "99999999999999999999"})
    expect_mistake(run_quire("plan --memory " + size), "--memory: " + size + " is no whole number from 0 to");
  expect_mistake(run_quire("generate -p hi --kv-cache-memory -1"), "-1 is no whole number");
  expect_mistake(run_quire("generate -p hi --seed -1"), "-1 is no whole number");
  expect_mistake(run_quire("generate -p hi --check-invariants -1"), "not in range 0 to 9223372036854775807");
  expect_mistake(run_quire("plan --shape qwen9"), "qwen3-0.6b");
  expect_mistake(run_quire("plan --shape qwen3-8b " + kToy), "--shape");
  expect_mistake(run_quire("bench"), "subcommand");
  expect_mistake(run_quire("bench throughput --workload odd"), "--workload");
  expect_mistake(run_quire("bench throughput --requests 257"), "256");
  expect_mistake(run_quire("bench throughput --input-len 5"), "--workload random");
  expect_mistake(run_quire("bench latency --batch 0"), "--batch");
  expect_mistake(run_quire("bench latency --n 0"), "--n");
  expect_mistake(run_quire("bench throughput --n 2 --temperature 0"), "n is 2");
  expect_mistake(run_quire("bench latency --max-model-len 10"), "max-model-len is 10");
  expect_mistake(run_quire("generate -p a -p b --stream"), "--stream");
}

TEST(CliTest, WholeNumbersAreDecimal) {
  for (const auto& [given, meant] : {std::pair{"010", "10"}, {"09", "9"}, {"-010", "-10"}, {"0", "0"}})
    expect_mistake(run_quire(std::string("generate -p hi --block-size ") + given),
                   std::string("block-size is ") + meant + ";");
  const ProgramResult plan = run_quire("plan " + kToy + " --memory 010GiB --json");
  EXPECT_EQ(json::parse(plan.out).at("memory_bytes"), std::size_t{10} << 30);
}

TEST(CliTest, FlagsOfGenerateThatDoNotGoTogetherAreToldBeforeTheModelIsLoaded) {
  const auto expect = [](const std::string& flags, const std::string& what) {
    expect_mistake(run_quire("generate /nowhere " + flags), what);
  };
  expect("", "no prompt");
  expect("-p a -p b --stream", "--stream takes one prompt, not 2");
  expect("-p hi --stream --json", "--stream and --json");
  expect("-p hi --stream --n 2", "--stream takes one output");
  expect("-p hi --stream --best-of 2", "--best-of");
  expect("-p hi --stream --beam-width 2", "--beam-width");
  expect("-p hi --logprobs 1", "--json");
  expect("-p hi --no-detokenize", "--json");
}

TEST(CliTest, QuantizeWritesWhatGenerateReads) {
  const TempDir dir;
  const std::string out = dir.path() / "out", and_generate = " -p 'Quire is' --max-tokens 8 --temperature 0";
  const ProgramResult written = run_quire("quantize " + kToy + " " + out + " --format int4");
  EXPECT_EQ(written.code, 0) << written.err;
  EXPECT_THAT(written.out, HasSubstr("42 matrices in int4; 3.9 MB, of 9.2"));
  EXPECT_EQ(written.err, "");  // no terminal
  EXPECT_EQ(run_quire("generate " + out + and_generate).out,
            run_quire("generate " + kToy + and_generate + " --quantization int4").out);
  expect_mistake(run_quire("quantize " + kToy + " " + out + " --format int4"), "there already");
  expect_mistake(run_quire("quantize " + kToy + " " + out), "--format is required");
  expect_mistake(run_quire("quantize " + kToy + " " + out + " --format int3"), "nf4");
}

TEST(CliTest, ProgressOfLoadingIsShownOnATerminal) {
  if (run_shell("script -qec true /dev/null").code != 0) GTEST_SKIP() << "needs script (util-linux)";
  const auto on_terminal = [](const std::string& flags) {
    return run_shell("script -qec '" QUIRE_PROGRAM " generate -p hi --max-tokens 1 " + flags + "' /dev/null")
        .out;
  };
  EXPECT_THAT(on_terminal("--quantization fp8"), HasSubstr("6/6 layers"));
  EXPECT_THAT(on_terminal(""), ::testing::Not(HasSubstr("layers")));
}

TEST(CliTest, WrongFilesAreOneLineAndCodeTwo) {
  expect_mistake(run_quire("generate /nowhere -p hi"), "/nowhere");
  expect_mistake(run_quire("generate " QUIRE_SOURCE_DIR "/tests -p hi"), "config.json");
  expect_mistake(run_quire("generate " + kGolden + " -p hi"), "tokenizer.json");
  expect_mistake(run_quire("generate " + kGolden + " --chat -p hi"), "chat template");
  expect_mistake(run_quire("verify " + kToy), "expected.safetensors");
  expect_mistake(run_quire("verify"), "MODEL");
  expect_mistake(run_quire("tokenize /nowhere"), "/nowhere");
  expect_mistake(run_quire("render /nowhere.jinja"), "/nowhere.jinja");
}

TEST(CliTest, GenerateContinuesTokenIdsAsHuggingFaceDoes) {
  const ProgramResult result =
      run_quire("generate " + kGolden +
                " --prompt-ids 1,2,3 --prompt-ids 4 --temperature 0 --ignore-eos --max-tokens 5 --json");
  EXPECT_EQ(result.code, 0) << result.err;
  std::istringstream lines(result.out);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const json object = json::parse(line);
    EXPECT_EQ(object.at("prompt_token_ids"), count == 0 ? json({1, 2, 3}) : json::array({4}));
    EXPECT_EQ(object.at("token_ids").size(), 5U);
    EXPECT_EQ(object.at("text"), "");  // a model without tokenizer
    EXPECT_EQ(object.at("finish_reason"), "length");
  }
  EXPECT_EQ(count, 2);
}

TEST(CliTest, GenerateGivesSeveralOutputsOfAPrompt) {
  const std::string flags = " --prompt-ids 1,2,3 --prompt-ids 4 --seed 5 --ignore-eos --max-tokens 8 --json ";
  const auto lines_of = [](const std::string& text) {
    std::istringstream stream(text);
    std::vector<json> lines;
    for (std::string line; std::getline(stream, line);) lines.push_back(json::parse(line));
    return lines;
  };
  const auto outputs = lines_of(run_quire("generate " + kGolden + flags + "--n 3").out);
  const auto alone = lines_of(run_quire("generate " + kGolden + flags).out);
  ASSERT_EQ(outputs.size(), 6U);
  ASSERT_EQ(alone.size(), 2U);
  for (std::size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(outputs[i].at("prompt"), i / 3);
    EXPECT_EQ(outputs[i].at("index"), i % 3);
  }
  EXPECT_EQ(outputs[0], alone[0]);
  EXPECT_EQ(outputs[3], alone[1]);
  EXPECT_NE(outputs[1].at("token_ids"), outputs[0].at("token_ids"));
  expect_mistake(run_quire("generate " + kGolden + flags + "--n 0"), "n is 0; it must be from 1 to 16384");
  expect_mistake(run_quire("generate -p hi --stream --n 2"), "--stream takes one output, not 2");
}

TEST(CliTest, GeneratePrintsTheBestTextsOfABeamSearch) {
  if (!QUIRE_HAS_BEAMS) GTEST_SKIP() << "needs QUIRE_BEAMS=ON";
  const std::string flags = " --prompt-ids 1,2,3 --ignore-eos --max-tokens 4 --json --beam-width 3 --n 2 ";
  std::vector<double> scores;
  for (const std::string penalty : {"0", "2"}) {
    const ProgramResult result =
        run_quire("generate " + kGolden + flags + "--early-stopping never --length-penalty " + penalty);
    EXPECT_EQ(result.code, 0) << result.err;
    std::istringstream lines(result.out);
    for (std::string line; std::getline(lines, line);) scores.push_back(json::parse(line).at("score"));
  }
  ASSERT_EQ(scores.size(), 4U);
  EXPECT_GE(scores[0], scores[1]);
  EXPECT_NEAR(scores[2], scores[0] / 16, 1e-6);
}

TEST(CliTest, GeneratePrintsLogProbabilities) {
  const ProgramResult result =
      run_quire("generate " + kGolden +
                " --prompt-ids 1,2,3 --temperature 0 --ignore-eos --max-tokens 4 --json --logprobs 2 "
                "--prompt-logprobs 1 --logit-bias 7:100 --presence-penalty 1");
  EXPECT_EQ(result.code, 0) << result.err;
  const json object = json::parse(result.out);
  EXPECT_EQ(object.at("token_ids"), json({7, 7, 7, 7}));
  ASSERT_EQ(object.at("logprobs").size(), 4U);
  double sum = 0;
  for (const json& position : object.at("logprobs")) {
    EXPECT_EQ(position.at("token_id"), 7);
    EXPECT_EQ(position.at("top").size(), 2U);
    EXPECT_EQ(position.at("top")[0].at("rank"), 1);
    sum += position.at("logprob").get<double>();
  }
  EXPECT_NEAR(object.at("cumulative_logprob").get<double>(), sum, 1e-4);
  ASSERT_EQ(object.at("prompt_logprobs").size(), 2U);
  EXPECT_EQ(object.at("prompt_logprobs")[1].at("token_id"), 3);
}

TEST(CliTest, APromptThatCannotFitFailsAloneWithCodeTwo) {
  const ProgramResult result = run_quire("generate " + kGolden +
                                         " --prompt-ids 1,2,3,4,5,6,7,8,9 --prompt-ids 1 --max-model-len 8 "
                                         "--temperature 0 --ignore-eos --max-tokens 2 --json");
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("prompt 1"));
  std::istringstream lines(result.out);
  std::string line;
  std::getline(lines, line);
  EXPECT_EQ(json::parse(line).at("finish_reason"), "error");
  std::getline(lines, line);
  EXPECT_EQ(json::parse(line).at("token_ids").size(), 2U);
}

TEST(CliTest, GenerateReadsPromptsFromStandardInputAndStreams) {
  const std::string flags = " --temperature 0 --max-tokens 12 ";
  const ProgramResult listed =
      run_quire("generate -p -" + flags + "--json", "The KV cache\nOnce there was\n");
  EXPECT_EQ(std::count(listed.out.begin(), listed.out.end(), '\n'), 2) << listed.err;
  const ProgramResult whole = run_quire("generate -p 'The KV cache'" + flags);
  const ProgramResult streamed = run_quire("generate -p 'The KV cache' --stream" + flags);
  EXPECT_EQ(whole.out, streamed.out);
  EXPECT_EQ(whole.out,
            json::parse(listed.out.substr(0, listed.out.find('\n'))).at("text").get<std::string>() + "\n");
}

TEST(CliTest, AStopStringIsCutWhereverTokensEnd) {
  const std::string command =
      "generate --chat -p 'What is a KV cache?' --temperature 0 --max-tokens 40 --json";
  const std::string text = json::parse(run_quire(command).out).at("text");
  ASSERT_GT(text.size(), 30U);
  for (const std::size_t begin : {7U, 12U, 19U}) {
    const std::string stop = text.substr(begin, 9);
    const json object = json::parse(run_quire(command + " --stop '" + stop + "'").out);
    EXPECT_EQ(object.at("text"), text.substr(0, text.find(stop)));
    EXPECT_EQ(object.at("finish_reason"), "stop");
  }
}

TEST(CliTest, AFullDiskIsReported) {
  const ProgramResult result = run_shell(QUIRE_PROGRAM " generate -p hi --max-tokens 2 > /dev/full");
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("cannot write"));
}

TEST(CliTest, AClosedOutputIsNoOtherFile) {
  if (!QUIRE_HAS_SERVER) GTEST_SKIP() << "needs QUIRE_SERVER=ON";
  const ProgramResult result =
      run_shell(QUIRE_PROGRAM
                " serve --port 0 >&- & "
                "until ls -l /proc/$!/fd | grep -q socket: || ! kill -0 $!; do :; done; "
                "readlink /proc/$!/fd/1; kill $!");
  EXPECT_EQ(result.out, "/dev/null\n") << result.err;
}

TEST(CliTest, ChatAnswersKeepsHistoryAndObeys) {
  const ProgramResult result =
      run_quire("chat --temperature 0",
                "What is a KV cache?\n/reset\nWhat is a KV cache?\n/nonsense\n/exit\nnever read\n");
  EXPECT_EQ(result.code, 0) << result.err;
  const std::string question = "> What is a KV cache?\n";
  EXPECT_THAT(result.out, StartsWith(question));
  const std::size_t second = result.out.find(question, 1);
  ASSERT_NE(second, std::string::npos);
  const std::string answer =
      result.out.substr(question.size(), result.out.find('\n', question.size()) - question.size());
  EXPECT_THAT(answer, HasSubstr("attention"));
  EXPECT_EQ(result.out.substr(second + question.size(), answer.size()), answer);
  EXPECT_THAT(result.err, HasSubstr("/nonsense is no command"));
  EXPECT_THAT(result.out, ::testing::Not(HasSubstr("never read")));
}

TEST(CliTest, CtrlCStopsAnAnswerAndNotTheChat) {
  // Without EOS the answer goes on to the end of the context; the signal comes as soon as some of it has
  // streamed. Background children of a shell ignore SIGINT, so the flag's handler must replace that.
  const ProgramResult result =
      run_shell(": >$$.answer; " QUIRE_PROGRAM
                " chat --ignore-eos --temperature 0 --ask 'Tell me a story about a fox' >$$.answer "
                "</dev/null & pid=$!; "
                "while kill -0 $pid && [ $(wc -c <$$.answer) -lt 60 ]; do sleep 0.01; done; kill -INT $pid; "
                "timeout 60 tail --pid=$pid -f /dev/null || kill -ABRT $pid; wait $pid; code=$?; rm "
                "$$.answer; exit $code");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("(stopped)"));
}

TEST(CliTest, VerifyPassesAndReportsInJson) {
  const ProgramResult result = run_quire("verify " + kGolden + " --json");
  EXPECT_EQ(result.code, 0);
  std::istringstream lines(result.out);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) EXPECT_EQ(json::parse(line).at("passed"), true);
  EXPECT_EQ(count, 4 * 3);  // ways, prompts
}

TEST(CliTest, TokenizeAndDetokenizeAreInverse) {
  const std::string text = "\"Grüße, paged attention! \\n\\u0000 🦊\"\n";
  const ProgramResult ids = run_quire("tokenize " + kToy, text);
  EXPECT_EQ(ids.code, 0) << ids.err;
  EXPECT_EQ(json::parse(run_quire("detokenize " + kToy + "/tokenizer.json", ids.out).out), json::parse(text));
  expect_mistake(run_quire("tokenize " + kToy, "not json\n"), "standard input, line 1");
  expect_mistake(run_quire("tokenize " + kToy, "7\n"), "JSON string");
  expect_mistake(run_quire("detokenize " + kToy, "[4096]\n"), "from 0 to 4095");
}

TEST(CliTest, RenderGivesTextOrTheTemplatesError) {
  const ProgramResult result = run_quire("render " + kToy,
                                         "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],"
                                         "\"add_generation_prompt\":true}\n{\"messages\":7}\n");
  EXPECT_EQ(result.code, 0) << result.err;
  std::istringstream lines(result.out);
  std::string line;
  std::getline(lines, line);
  EXPECT_THAT(json::parse(line).get<std::string>(), HasSubstr("<|im_start|>user\nhi<|im_end|>"));
  std::getline(lines, line);
  EXPECT_TRUE(json::parse(line).contains("error")) << line;
}

// As transformers does. A template may tell undefined from none: `{% if tools is not none %}`.
TEST(CliTest, RenderPassesNoneWhereAContextNamesNoTools) {
  const TempDir dir;
  const std::string path =
      dir.write("t.jinja", "{{ tools is none }} {{ documents is defined }} {{ tools }}").string();
  const ProgramResult result = run_quire("render " + path, "{}\n{\"tools\":null}\n{\"tools\":[1]}\n[]\n");
  EXPECT_THAT(result.out,
              ::testing::StartsWith("\"True False None\"\n\"True False None\"\n\"False False [1]\"\n"));
  EXPECT_THAT(result.out, HasSubstr("must be an object"));
  EXPECT_THAT(run_quire("render --help").out, HasSubstr("null"));
}

}  // namespace
}  // namespace quire
