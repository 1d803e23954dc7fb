#pragma once

#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/request.h"
#include "engine/sampling_context.h"
#include "quire/sampling_params.h"
#include "server/json_fields.h"

namespace quire::server {

// What answers have though their requests do not ask for it.
struct AnswerDefaults {
  bool include_usage = false;  // streams
  bool return_tokens_as_token_ids = false;
  bool metrics = false;                                      // times of one output, in vLLM's names
  OrderedJson chat_template_kwargs = OrderedJson::object();  // under the request's own
};

// How a chat template takes the content of a message.
enum class ContentFormat {
  kText,   // a string
  kParts,  // a list of {type: text, text}
};

// What is served and how much of it a request may have: what decides which requests are right.
struct ServedModel {
  std::vector<std::string> names;                       // that requests may call it; empty: any
  SamplingParams defaults;                              // the model author's
  OrderedJson author_defaults = OrderedJson::object();  // what that author has said of them, by field
  std::optional<int> default_max_tokens;  // theirs too, of a chat; unset: the rest of the context
  SamplingContext sampling;
  int max_model_len = 0;
  int hidden_size = 0;
  int max_num_seqs = 0;              // that run at once, a search's beams among them; 0: no limit
  std::int64_t kv_cache_tokens = 0;  // that it holds; 0: no limit
  ContentFormat content_format = ContentFormat::kText;
  bool reasons = false;  // in a way that is known: a budget can hold it
  int max_n = 128;
  std::size_t max_prompts = 1024;  // of one request
  AnswerDefaults answers = {};
};

// What requests have in common: what the engine gets of each of their prompts, apart from the prompt, and how
// they are answered. As everywhere in this folder, null counts as absent, unknown fields are ignored, and
// what is wrong throws an ApiError that names the field.
struct ApiRequest : EngineRequest {
  std::string model;              // as the client called it
  std::string request_id;         // the client's, or empty
  std::optional<int> max_tokens;  // in place of params.max_tokens; unset: the rest of the context
  bool stream = false;
  bool include_usage = false;      // in a stream: in a chunk of its own at the end
  bool continuous_usage = false;   // and in every chunk
  bool add_special_tokens = true;  // to a prompt of text
  bool truncate_right = false;     // truncate_prompt_tokens keeps the prompt's beginning
  bool report_prompt_logprobs = false;
  bool return_token_ids = false;
  bool return_tokens_as_token_ids = false;  // where log-probabilities name tokens: "token_id:7"
  bool timings = false;
  bool metrics = false;  // the server's choice
};

// 1 to 64 letters, digits, dots, dashes or underscores: nothing that a log or a header could misread.
bool is_request_id(std::string_view text);

// What generating requests have in common, apart from max_tokens. ApiError too for what vLLM has and Quire
// has not, where it is asked for.
void read_common(const JsonFields& fields, const ServedModel& model, ApiRequest& request);
// priority, request_id and cache_salt, which read_common reads, too.
void read_identity(const JsonFields& fields, ApiRequest& request);
// ApiError when a field asks for something.
void refuse_unsupported(const JsonFields& fields, std::initializer_list<std::string_view> names);
// The same of what vLLM can say of tokens and Quire cannot, wherever there are tokens.
void refuse_token_details(const JsonFields& fields);
// ApiError (404) unless it is empty or one of the model's.
void check_model_name(const std::string& name, const ServedModel& model);
const Tokenizer& tokenizer_of(const ServedModel& model);  // ApiError where it has none
// What the request calls the model, or the first of its names; ApiError (404) as above.
std::string read_model_name(const JsonFields& fields, const ServedModel& model);
// As the engine's, with the parameter's name.
void check_sampling(const SamplingParams& params, const ServedModel& model);

// Leaves the first tokens, or the last ones.
void cut_tokens(std::vector<TokenId>& tokens, std::int64_t kept, bool keeps_beginning);
// truncate_prompt_tokens and truncation_side.
void read_truncation(const JsonFields& fields, ApiRequest& request);
// Cuts the prompt as they say. ApiError where the context has no room for so many beside the output.
void truncate_prompt(std::vector<TokenId>& prompt, const ApiRequest& request, const ServedModel& model);

// What a request's text must be, in the words of OpenAI (response_format), vLLM (structured_outputs, and
// guided_json and the like before), llama.cpp (grammar, json_schema) and SGLang (regex, ebnf,
// structural_tag); null: nothing. ApiError that names the field. What a source says is looked at when it is
// compiled (structured_fields.cpp).
std::shared_ptr<const StructuredOutputs> read_structured_outputs(const JsonFields& fields);

// ApiError unless the KV cache can hold a prompt of so many tokens.
void check_cache_holds(std::int64_t tokens, const ServedModel& model);

// What the engine gets for one prompt, apart from on_update: truncated, with max_tokens decided. ApiError
// when prompt and output do not fit in the context.
// checked: parameters that were found right, or null; equal ones are not checked again, which may take long.
EngineRequest make_engine_request(const ApiRequest& request, std::vector<TokenId> prompt,
                                  const ServedModel& model, const SamplingParams* checked = nullptr);

}  // namespace quire::server
