#include <algorithm>
#include <array>
#include <random>
#include <string_view>

#include "base/error.h"
#include "base/json.h"
#include "load/load_generator.h"

namespace quire {
namespace {

constexpr TokenId kFirstTokenId = 256;
constexpr int kMaxLength = 1 << 20;  // tokens

// One token each in most vocabularies.
constexpr std::array<std::string_view, 32> kWords = {
    "the",   "and",    "time", "house", "water", "people", "good", "small", "day", "year",  "way",
    "man",   "work",   "life", "hand",  "part",  "place",  "case", "week",  "old", "new",   "long",
    "great", "little", "own",  "other", "right", "big",    "high", "young", "few", "public"};

int length_of(const Json& line, const char* key, const std::string& where) {
  const auto value = line.find(key);
  if (value == line.end() || !value->is_number_integer() || *value < 1 || *value > kMaxLength)
    fail("{}: {} must be a number of tokens from 1 to {}", where, key, kMaxLength);
  return value->get<int>();
}

LoadRequest parse_line(std::string_view text, const std::string& where) {
  const Json line = parse_json(text, where);
  if (!line.is_object()) fail("{}: this is {}; expected an object", where, describe(line));
  LoadRequest request;
  request.size.output_tokens = length_of(line, "output_len", where);
  const auto prompt = line.find("prompt");
  if (prompt == line.end()) {
    request.size.prompt_tokens = length_of(line, "input_len", where);
  } else if (!prompt->is_string() || prompt->get_ref<const std::string&>().empty()) {
    fail("{}: prompt must be a text", where);
  } else {
    request.text = prompt->get<std::string>();
  }
  return request;
}

}  // namespace

std::vector<LoadRequest> random_requests(const RandomSizes& sizes, std::uint64_t seed) {
  std::vector<LoadRequest> requests;
  for (const RequestSize& size : random_sizes(sizes, seed)) requests.emplace_back().size = size;
  return requests;
}

std::vector<LoadRequest> read_dataset(const std::filesystem::path& file) {
  constexpr std::size_t kMaxBytes = std::size_t{1} << 30;
  const std::string text = read_text_file(file, kMaxBytes);
  std::vector<LoadRequest> requests;
  std::size_t number = 1;
  for (std::size_t start = 0; start < text.size(); ++number) {
    const std::size_t end = std::min(text.find('\n', start), text.size());
    const std::string_view line = std::string_view(text).substr(start, end - start);
    if (line.find_first_not_of(" \t\r") != std::string_view::npos)
      requests.push_back(parse_line(line, format_text("{}, line {}", file.string(), number)));
    start = end + 1;
  }
  if (requests.empty()) fail("{}: there are no requests in it", file.string());
  return requests;
}

void fill_prompts(std::vector<LoadRequest>& requests, bool as_text, int vocab_size, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_int_distribution<TokenId> any_token(kFirstTokenId, vocab_size - 1);
  std::uniform_int_distribution<std::size_t> any_word(0, kWords.size() - 1);
  for (LoadRequest& request : requests) {
    if (!request.text.empty()) continue;
    for (int i = 0; i < request.size.prompt_tokens; ++i) {
      if (as_text) {
        request.text += i == 0 ? "" : " ";
        request.text += kWords[any_word(random)];
      } else {
        request.token_ids.push_back(any_token(random));
      }
    }
  }
}

std::string request_body(const LoadRequest& request, const RequestForm& form) {
  OrderedJson body = {{"model", form.model}};
  if (form.chat) {
    const OrderedJson part = {{"type", "text"}, {"text", request.text}};
    body["messages"] = OrderedJson::array({{{"role", "user"}, {"content", OrderedJson::array({part})}}});
    body["max_completion_tokens"] = request.size.output_tokens;
  } else {
    body["prompt"] = request.text.empty() ? OrderedJson(request.token_ids) : OrderedJson(request.text);
    body["max_tokens"] = request.size.output_tokens;
  }
  body["stream"] = form.stream;
  if (form.stream) body["stream_options"] = {{"include_usage", true}};
  if (form.ignore_eos) body["ignore_eos"] = true;
  if (form.temperature) body["temperature"] = *form.temperature;
  const OrderedJson extra = parse_ordered_json(form.extra_body, "--extra-body");
  if (!extra.is_object()) fail("--extra-body: {} is no JSON object", in_quotes(form.extra_body));
  body.update(extra);
  return body.dump();
}

}  // namespace quire
