#include <quire/llm.h>

#include <iostream>

int main() {
  quire::LLM llm(quire::EngineConfig{.model = ""});  // the bundled model; or a checkpoint directory
  const std::vector<quire::Prompt> prompts = {llm.apply_chat_template({{"user", "What is a KV cache?"}}),
                                              "Once there was"};
  quire::SamplingParams params{.temperature = 0.7F, .seed = 1, .max_tokens = 60};
  for (const quire::RequestOutput& request : llm.generate(prompts, params, {.progress = true})) {
    const quire::CompletionOutput& output = request.outputs.front();
    std::cout << output.text << " [" << to_string(output.finish_reason) << "]\n";
  }
}
