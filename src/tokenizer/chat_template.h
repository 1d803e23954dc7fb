#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "tokenizer/jinja_limits.h"
#include "tokenizer/text_piece.h"

namespace quire {
namespace jinja {
struct Template;
}

// A chat template in Jinja, as Hugging Face transformers would render it. Immutable once compiled: any number
// of threads may render at once.
class ChatTemplate {
 public:
  // `where` names the source in errors, which give the line too.
  ChatTemplate(std::string_view source, std::string_view where, const ChatTemplateLimits& limits = {});

  // `context` is an object: messages, tools, documents, add_generation_prompt, bos_token, eos_token and what
  // else the template reads. Neighbouring pieces differ in trust. Trusted is what stands in the template
  // itself, the usual names of messages' roles, and the context's strings named *_token; so never let a
  // request name such a variable. Error where
  // transformers would refuse, or beyond the limits; that of raise_exception is the template's message.
  std::vector<TextPiece> render(const OrderedJson& context, const RenderOptions& options) const;
  const std::string& source() const { return source_; }

 private:
  std::string source_;
  std::shared_ptr<const jinja::Template> template_;
  ChatTemplateLimits limits_;
};

std::string join_pieces(const std::vector<TextPiece>& pieces);

// What templates take for no text.
constexpr std::string_view kWhiteSpace = " \t\n\r\v\f";
// Ends a chat's pieces behind the last place where a message's text stands, as transformers does: with the
// white space at its end where the template has kept it. What the template itself writes at the end, such as
// a closing tag, is no such place. False: there is none.
bool cut_after(std::vector<TextPiece>& pieces, std::string_view text);

std::tm local_time();

// What a checkpoint folder says about chat.
struct CheckpointChatTemplate {
  ChatTemplate standard;
  std::optional<ChatTemplate> tool_use;  // for conversations with tools
  OrderedJson special_tokens;            // bos_token, eos_token, ...: the strings of tokenizer_config.json

  // Chooses the template and adds the special tokens to the context.
  std::vector<TextPiece> render(OrderedJson context, const RenderOptions& options) const;
};

// chat_template.jinja, with additional_chat_templates/tool_use.jinja, or else the chat_template of
// tokenizer_config.json: a string, or a list of {name, template}; or else that of chat_template.json. Nothing
// if the folder has none. given: not null: it stands instead, and none is looked for.
std::optional<CheckpointChatTemplate> load_chat_template(const std::filesystem::path& folder,
                                                         const ChatTemplate* given = nullptr);

// A template that a user gives: a file, or else its text, in which \n, \t, \\, \' and \" stand for what
// they do in C. Error for what is neither.
ChatTemplate read_chat_template(const std::string& file_or_text);

}  // namespace quire
