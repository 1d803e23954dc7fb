#include <algorithm>
#include <bitset>
#include <optional>
#include <random>
#include <utility>

#include "dialects/call_run.h"
#include "dialects/output_format.h"

namespace quire::dialects {
namespace {

bool ends_with_any(std::string_view text, const Few<std::string_view>& tags) {
  return std::ranges::any_of(tags, [&](std::string_view tag) { return text.ends_with(trimmed(tag)); });
}

// The state machine between the tables and the deltas. Text is either reasoning or content; the tags that may
// come in it depend on that. A tag that begins calls hands over to a CallRun, until that ends or refuses.
class OutputSplitter final : public OutputParser {
 public:
  OutputSplitter(const OutputFormat& format, std::string_view prompt, ToolParserOptions options)
      : reasoning_(format.reasoning),
        tools_(format.tool_calls == nullptr ? nullptr : &compiled(*format.tool_calls)),
        options_(std::move(options)) {
    if (reasoning_ != nullptr) {
      const ReasoningTags tags = reasoning_tags(*reasoning_, prompt);
      at_start_ = !tags.end.empty();
      if (at_start_ && tags.begin.empty()) mode_ = Mode::kReasoning;
    }
    find_tags();
  }

  OutputDelta parse(std::string_view new_text) override {
    for (std::size_t i = 0; i < new_text.size(); ++i) {
      if (held_.empty() && !run_ && !mention_ && !holds_blank()) {  // most text
        std::size_t end = i;
        while (end < new_text.size() && !starts_[static_cast<unsigned char>(new_text[end])]) ++end;
        (mode_ == Mode::kReasoning ? delta_.reasoning : delta_.content) += new_text.substr(i, end - i);
        blank_ = blank_ && is_blank(new_text.substr(i, end - i));
        if (end == new_text.size()) break;
        i = end;
      }
      push(new_text[i]);
    }
    return std::exchange(delta_, {});
  }

  OutputDelta finish() override {
    if (holds_cut_call()) drop_held();
    if (mention_ && !mention_->delta.empty()) {
      for (ToolCallDelta& call : mention_->delta.tool_calls) {
        call.id = id_of(call);
        delta_.add(std::move(call));
      }
      if (!is_blank(held_)) delta_.content += held_;
    } else if (mention_) {
      end_mention(0);
    } else if (calls_ == 0 || !is_blank(held_)) {
      blank_ = at_start_ = false;
      give_out(held_.size());
    }
    return std::exchange(delta_, {});
  }

 private:
  enum class Mode { kReasoning, kContent };
  enum class Action { kBegin, kEnd, kDrop, kClose, kCalls };
  struct Tag {
    std::string_view text;
    Action action;
  };
  // Calls in reasoning, which may be no more than mentioned: they count if nothing else follows.
  struct Mention {
    std::string text;
    OutputDelta delta;
    int calls_before;
  };

  // The id of a call that begins, by the one that the model has written.
  std::string id_of(const ToolCallDelta& call) const {
    const CallIds ids = tools_->dialect->ids;
    if (ids == CallIds::kWritten && !call.id.empty()) return "functions." + call.name + ":" + call.id;
    return options_.new_id ? options_.new_id() : random_call_id(ids);
  }

  void add_to_call(ToolCallDelta call) {
    const bool begins = !call.name.empty();
    if (begins) {
      ++calls_;
      blank_ = true;
      at_start_ = false;
      if (!mention_) mode_ = Mode::kContent;  // its tags are found when the run ends
    }
    call.index = calls_ - 1;
    if (call.index > 0 && !options_.parallel_tool_calls) return;
    if (begins && !mention_) call.id = id_of(call);
    (mention_ ? mention_->delta : delta_).add(std::move(call));
  }

  void push(char c) {
    if (mention_) {
      mention_->text += c;
      for (const std::string_view end : reasoning_->end) {
        if (!mention_->text.ends_with(end)) continue;
        mention_->text.resize(mention_->text.size() - end.size());
        end_mention(0);
        return enter(Mode::kContent);
      }
    }
    held_ += c;
    run_ ? push_call(c) : push_text(c);
  }

  void push_text(char c) {
    for (++partial_; partial_ > 0; --partial_) {
      const std::string_view end = std::string_view(held_).substr(held_.size() - partial_);
      const auto tag = std::ranges::find(tags_, end, &Tag::text);
      if (tag != tags_.end() && on_tag(Tag(*tag))) return;
      const bool begins = std::ranges::any_of(tags_, [&](const Tag& known) {
        return known.text.size() > end.size() && known.text.starts_with(end);
      });
      if (begins) return give_out(held_.size() - partial_);
    }
    give_out(held_.size() - 1);
    if (tools_ != nullptr && mode_ == Mode::kContent && blank_ && !is_space(c)) {
      begin_run({});
      return push_call(c);
    }
    give_out(held_.size());
  }

  // What is held ends with the tag; before it is white space, if anything. False: here it is text.
  bool on_tag(const Tag& tag) {
    const std::size_t before = held_.size() - tag.text.size();
    switch (tag.action) {
      case Action::kBegin:
        enter(Mode::kReasoning);
        return true;
      case Action::kEnd:
        at_start_ = false;
        give_out(before);
        enter(Mode::kContent);
        return true;
      case Action::kDrop: {
        const bool closes = tag.text.starts_with("</");
        const bool special = tag.text.starts_with("<|");
        if (!special && !(closes ? wrapped_ : blank_)) return false;
        wrapped_ = !closes;
        give_out(before);
        held_.resize(held_.size() - tag.text.size());
        partial_ = 0;
        return true;
      }
      case Action::kClose:
        drop_held();
        return true;
      case Action::kCalls:
        give_out(before);
        begin_run(tag.text);
        return true;
    }
    return false;
  }

  // Behind a tag, which is dropped with the white space that is held before it.
  void enter(Mode mode) {
    mode_ = mode;
    at_start_ = false;
    blank_ = true;
    drop_held();
    closers_.clear();
    run_.reset();
    find_tags();
  }

  void begin_run(std::string_view trigger) {
    partial_ = 0;
    if (mode_ == Mode::kReasoning && !tools_->dialect->ends_reasoning && !mention_)
      mention_.emplace(Mention{.text = held_, .delta = {}, .calls_before = calls_});
    run_.emplace(*tools_, trigger, options_.tools.get(),
                 [this](ToolCallDelta call) { add_to_call(std::move(call)); });
  }

  void push_call(char c) {
    const ReadStatus status = run_->push(c);
    if (run_->consumed()) drop_held();
    if (status == ReadStatus::kError) return refuse();
    if (status == ReadStatus::kMore) return;
    closers_ = run_->closers();
    run_.reset();
    find_tags();
  }

  // The last byte cannot stand where it does: what is held is text, but for the beginning of a literal, which
  // may be that of a tag; it and the byte are looked at as text.
  void refuse() {
    const bool has_calls = run_->has_calls();
    std::size_t unread = std::min(run_->partial() + 1, held_.size());
    const std::size_t first = held_.find_first_not_of(kWhiteSpace);
    if (!has_calls && first != held_.npos) unread = std::min(unread, held_.size() - first - 1);
    if (has_calls) closers_ = run_->closers();
    run_.reset();
    find_tags();
    const std::string again = held_.substr(held_.size() - unread);
    held_.resize(held_.size() - unread);
    if (mention_) mention_->text.resize(mention_->text.size() - unread);
    give_out(held_.size());
    for (const char byte : again) push(byte);
  }

  // White space stays where calls or reasoning may still follow it.
  void give_out(std::size_t bytes) {
    const std::string_view text = std::string_view(held_).substr(0, bytes);
    known_blank_ = std::min(known_blank_, bytes);
    const bool blank = is_blank(text.substr(known_blank_));
    if (blank) known_blank_ = bytes;
    if (bytes == 0 || (blank && (holds_blank() || mention_))) return;
    known_blank_ = 0;
    if (mention_) return end_mention(held_.size() - bytes);
    (mode_ == Mode::kReasoning ? delta_.reasoning : delta_.content) += text;
    held_.erase(0, bytes);
    if (blank) return;
    const bool changed = at_start_ || !closers_.empty();
    blank_ = at_start_ = false;
    closers_.clear();
    if (changed) find_tags();
  }

  // The calls were only mentioned: all but the last bytes, which are still held, is reasoning.
  void end_mention(std::size_t unread) {
    delta_.reasoning.append(mention_->text, 0, mention_->text.size() - unread);
    held_.erase(0, held_.size() - std::min(unread, held_.size()));
    calls_ = mention_->calls_before;
    mention_.reset();
    at_start_ = false;
    closers_.clear();
    find_tags();
  }

  void find_tags() {
    tags_.clear();
    const auto add = [&](const auto& texts, Action action) {
      for (const std::string_view text : texts) tags_.push_back({text, action});
    };
    const bool reasons = mode_ == Mode::kReasoning;
    if (reasoning_ != nullptr) {
      if (at_start_ || (reasoning_->repeats && !reasons)) add(reasoning_->begin, Action::kBegin);
      if (reasons) add(reasoning_->end, Action::kEnd);
      if (!reasons) add(reasoning_->dropped, Action::kDrop);
    }
    add(closers_, Action::kClose);
    if (tools_ != nullptr) {
      if (!tools_->dialect->lead.empty()) tags_.push_back({tools_->dialect->lead, Action::kDrop});
      for (const CompiledForm& form : tools_->forms)
        if (!form.at_start()) tags_.push_back({form.trigger, Action::kCalls});
    }
    starts_.reset();
    for (const Tag& tag : tags_) starts_.set(static_cast<unsigned char>(tag.text.front()));
  }

  bool holds_blank() const { return at_start_ || (tools_ != nullptr && mode_ == Mode::kContent && blank_); }
  void drop_held() {
    held_.clear();
    known_blank_ = partial_ = 0;
  }
  // Part of a call, or behind calls the beginning of a tag that closes them: the output ended too early.
  bool holds_cut_call() const {
    if (run_ && run_->in_call()) return true;
    const std::size_t cut = held_.size() - std::min(run_ ? run_->partial() : partial_, held_.size());
    const std::string_view begun = std::string_view(held_).substr(cut);
    const std::vector<std::string_view> closers = run_ ? run_->closers() : closers_;
    return calls_ > 0 && is_blank(std::string_view(held_).substr(0, cut)) &&
           std::ranges::any_of(closers, [&](std::string_view tag) { return tag.starts_with(begun); });
  }

  const ReasoningDialect* reasoning_;
  const CompiledDialect* tools_;
  const ToolParserOptions options_;
  OutputDelta delta_;
  Mode mode_ = Mode::kContent;
  bool at_start_ = false;        // reasoning may begin: nothing but white space since the output's start
  bool blank_ = true;            // nothing but white space since the output's start, a call or reasoning
  bool wrapped_ = false;         // a tag of the reasoning's dialect opened the content
  std::string held_;             // read, not given out, and not yet known to be part of a call
  std::size_t partial_ = 0;      // bytes at its end that may become a tag
  std::size_t known_blank_ = 0;  // bytes at its beginning that were looked at, and are white space
  int calls_ = 0;
  std::vector<Tag> tags_;    // that may come now
  std::bitset<256> starts_;  // their first bytes
  std::vector<std::string_view> closers_;
  std::optional<CallRun> run_;
  std::optional<Mention> mention_;
};

}  // namespace

std::string random_call_id(CallIds ids) {
  constexpr std::string_view kLetters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
  thread_local std::random_device random;
  std::uniform_int_distribution<std::size_t> letter(0, kLetters.size() - 1);
  std::string id = ids == CallIds::kNine ? "" : "call_";
  for (int i = ids == CallIds::kNine ? 9 : 24; i > 0; --i) id += kLetters[letter(random)];
  return id;
}

ReasoningTags reasoning_tags(const ReasoningDialect& dialect, std::string_view prompt) {
  prompt = trimmed(prompt);
  if (ends_with_any(prompt, dialect.end)) return {};
  const bool within = dialect.implicit || ends_with_any(prompt, dialect.begin);
  return {.begin = std::string(within ? "" : dialect.begin.front()),
          .end = std::string(dialect.end.front()) += dialect.behind};
}

std::unique_ptr<OutputParser> make_output_parser(const OutputFormat& format, std::string_view prompt,
                                                 ToolParserOptions options) {
  return std::make_unique<OutputSplitter>(format, prompt, std::move(options));
}

}  // namespace quire::dialects
