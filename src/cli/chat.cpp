#include <unistd.h>

#include <iostream>
#include <memory>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "quire/llm.h"

namespace quire::cli {
namespace {

// A conversation on the terminal. Answers go to stdout, hints to stderr.
class Chat : public EngineOptions {
 public:
  SamplingOptions sampling;
  std::string system;
  std::vector<std::string> questions;  // asked before the terminal is

  void add_to(Flags flags) {
    EngineOptions::add_to(flags);
    add_default_options(flags, config);
    flags.value("--system", system, "what the model is told first");
    flags.list("--ask", questions, "a first message (repeatable)");
    add_sampling_options(flags, sampling);
  }

  int run() {
    if (follows()) return 0;
    config.model = source.find(config.model);
    llm_ = std::make_unique<LLM>(config);
    params_ = sampling.over(llm_->default_sampling_params());
    llm_->check(params_);
    interactive_ = isatty(STDIN_FILENO) != 0;
    const InterruptFlag interrupt;
    reset();
    if (interactive_) print_text(stderr, "Type a message. /help lists the commands, Ctrl-D leaves.\n");
    for (const std::string& question : questions) {
      std::cout << "> " << question << "\n";
      answer(question);
    }
    for (std::string line; read_line(line) && obey(line);) {
    }
    return 0;
  }

 private:
  void reset() {
    messages_.clear();
    if (!system.empty()) messages_.push_back({"system", system});
  }

  bool read_line(std::string& line) const {
    while (true) {
      if (interactive_) std::cout << "> " << std::flush;
      InterruptFlag::raised = false;
      if (std::getline(std::cin, line)) {
        if (!interactive_) std::cout << "> " << line << "\n";
        return true;
      }
      if (!interactive_ || !InterruptFlag::is_raised()) return false;
      std::clearerr(stdin);
      std::cin.clear();
      std::cout << "\n";
      print_text(stderr, "(/exit or Ctrl-D leaves)\n");
    }
  }

  // False: the chat is over.
  bool obey(const std::string& line) {
    if (line.empty()) return true;
    if (line == "/exit" || line == "/quit") return false;
    if (line == "/reset") {
      reset();
      print_text(stderr, "(the conversation starts anew)\n");
    } else if (line == "/help") {
      print_text(stderr, "/reset forgets the conversation, /exit leaves, Ctrl-C stops an answer\n");
    } else if (line.front() == '/') {
      print_text(stderr, "{} is no command; there are /reset, /help and /exit\n", line);
    } else {
      answer(line);
    }
    return true;
  }

  void answer(const std::string& question) {
    messages_.push_back({"user", question});
    InterruptFlag::raised = false;
    std::vector<std::int32_t> prompt;
    try {
      prompt = llm_->apply_chat_template(messages_);
    } catch (const Error& e) {  // such as bytes that are no text: the conversation goes on
      print_text(stderr, "({})\n", e.what());
      messages_.pop_back();
      return;
    }
    SamplingParams params = params_;
    const int room = std::max(1, llm_->max_model_len() - static_cast<int>(prompt.size()));
    params.max_tokens = std::min(sampling.max_tokens.value_or(room), room);
    GenerateOptions options;
    options.cancelled = &InterruptFlag::raised;
    options.on_text = [](std::size_t, const CompletionOutput&, std::string_view text) {
      std::cout << text << std::flush;
    };
    const RequestOutput request = llm_->generate({prompt}, params, options).front();
    const CompletionOutput& output = request.outputs.front();
    std::cout << "\n" << std::flush;
    if (output.finish_reason == FinishReason::kError) {
      print_text(stderr, "({}; /reset starts the conversation anew)\n", output.error);
      messages_.pop_back();
      return;
    }
    if (output.finish_reason == FinishReason::kAbort) print_text(stderr, "(stopped)\n");
    messages_.push_back({"assistant", output.text});
  }

  std::unique_ptr<LLM> llm_;
  SamplingParams params_;
  std::vector<ChatMessage> messages_;
  bool interactive_ = false;
};

}  // namespace

void add_chat(CLI::App& app, Command& chosen) { add_command<Chat>(app, chosen, "chat", "Talk with a model"); }

}  // namespace quire::cli
