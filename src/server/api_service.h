#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <span>
#include <string>
#include <vector>

#include "dialects/output_format.h"
#include "engine/classifier.h"
#include "engine/engine.h"
#include "server/api_request.h"
#include "server/api_response.h"
#include "server/chat_output.h"
#include "server/chat_request.h"
#include "server/exchange.h"
#include "server/metrics.h"
#include "server/response_store.h"

namespace quire::server {

struct ServiceOptions {
  std::vector<std::string> served_model_names;  // the first is what answers call it; empty: the directory's
  std::string tool_call_parser = "auto";        // by the chat template; none, or a name of tool_dialects
  std::string reasoning_parser = "auto";        // by the chat template; none, or one of reasoning_dialects
  Pooling pooling = Pooling::kLast;             // of embeddings
  double request_timeout = 3600;                // seconds, after which a request ends as it is
  int max_n = 128;                              // outputs of a prompt
  std::size_t max_prompts = 1024;               // of a request
  std::size_t response_store_size = 64 << 20;   // bytes, of /v1/responses; 0: none is kept
  std::string hf_overrides;                     // as find_classifier has it
  std::string content_format = "auto";          // of messages in templates: auto, string or openai
  AnswerDefaults answers = {};
  std::string root_path;  // of a proxy, as /openapi.json has it
  // A prefix that was computed for one of the server's keys is not found by another's requests.
  bool separate_keys = false;
};
// Error where one of them names nothing.
void check_options(const ServiceOptions& options);

// A loaded model and its endpoints. Each takes an exchange and answers it, at once or when the engine has.
// Thread contract: from any thread; the engine is its own.
class ApiService : public std::enable_shared_from_this<ApiService> {
 public:
  // engine_config: what the engine was started with.
  ApiService(std::unique_ptr<Engine> engine, const EngineConfig& engine_config, ServiceOptions options);
  ~ApiService() { close(); }  // before the metrics go, which the engine tells of its steps

  // What is wrong with a request throws; then it has no answer yet.
  void complete(const std::shared_ptr<Exchange>& exchange);
  void chat(const std::shared_ptr<Exchange>& exchange);
  void create_response(const std::shared_ptr<Exchange>& exchange);
  void get_response(const std::shared_ptr<Exchange>& exchange);  // or its input items
  void delete_response(const std::shared_ptr<Exchange>& exchange);
  void cancel_response(const std::shared_ptr<Exchange>& exchange);
  void create_message(const std::shared_ptr<Exchange>& exchange);
  void count_tokens(const std::shared_ptr<Exchange>& exchange);
  void embed(const std::shared_ptr<Exchange>& exchange);  // and /pooling, /classify
  void score(const std::shared_ptr<Exchange>& exchange);  // and /rerank
  void tokenize(const std::shared_ptr<Exchange>& exchange);
  void detokenize(const std::shared_ptr<Exchange>& exchange);
  void show_models(const std::shared_ptr<Exchange>& exchange);  // all, or one
  void show_openapi(const std::shared_ptr<Exchange>& exchange);
  void show_metrics(const std::shared_ptr<Exchange>& exchange);
  void show_load(const std::shared_ptr<Exchange>& exchange);            // vLLM's: requests under way
  void show_tokenizer_info(const std::shared_ptr<Exchange>& exchange);  // vLLM's: tokenizer_config.json
  // llama.cpp's.
  void llama_complete(const std::shared_ptr<Exchange>& exchange);
  void apply_template(const std::shared_ptr<Exchange>& exchange);
  void show_props(const std::shared_ptr<Exchange>& exchange);

  bool healthy() const;
  // What the engine has not finished ends with "abort". No endpoint may be called any more.
  void close();

  const ServedModel& model() const { return model_; }
  // For live requests.
  Metrics& metrics() { return *metrics_; }
  std::atomic<int>& num_live() { return num_live_; }  // live requests
  std::vector<RequestId> submit(std::span<EngineRequest> requests);
  void abort(RequestId id);

 private:
  using MakeChatResponse =
      std::function<std::unique_ptr<Response>(ChatRequest request, const MakeParser& make_parser)>;

  const CheckpointChatTemplate& chat_template() const;
  std::vector<TextPiece> render(const Exchange& exchange, const ChatRequest& request) const;
  std::vector<TokenId> chat_tokens(const Exchange& exchange, const ChatRequest& request) const;
  void generate(const std::shared_ptr<Exchange>& exchange, std::unique_ptr<Response> response,
                std::vector<EngineRequest> prompts);
  // Answers a chat with what `make_response` makes of the request, its context spent.
  void generate_chat(const std::shared_ptr<Exchange>& exchange, ChatRequest request,
                     const MakeChatResponse& make_response);
  template <typename Request, typename MakeBody>
  void pool(const std::shared_ptr<Exchange>& exchange, const char* id_prefix, Request request,
            std::vector<std::vector<TokenId>> inputs, MakeBody make_body);
  // Its id is the client's, or the exchange's.
  ResponseHead response_head(const char* prefix, const Exchange& exchange, const ApiRequest& request) const;

  ServiceOptions options_;
  mutable std::shared_mutex engine_mutex_;  // of the pointer; nobody waits for the engine under it
  std::unique_ptr<Engine> engine_;          // null: closed
  ServedModel model_;
  std::optional<CheckpointChatTemplate> chat_template_;
  std::string template_error_;  // why there is none
  std::optional<Classifier> classifier_;
  dialects::OutputFormat output_format_;
  bool has_special_tags_ = false;  // some of its tags are special tokens, which the text must show then
  std::string tokenizer_info_;     // tokenizer_config.json; empty: there is none
  std::atomic<int> num_live_ = 0;
  std::unique_ptr<Metrics> metrics_;
  ResponseStore responses_;
  std::string fingerprint_;
  std::int64_t start_time_;
};

}  // namespace quire::server
