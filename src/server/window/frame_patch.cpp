#include <type_traits>

#include "base/format.h"
#include "base/json.h"
#include "server/api_response.h"
#include "server/window/window_frame.h"

namespace quire::server {
namespace {

// Each writes a value as JSON.
template <typename T>
requires std::is_arithmetic_v<T>
void write(std::string& out, T value) {
  if constexpr (std::is_same_v<T, bool>)
    out += value ? "true" : "false";
  else if constexpr (std::is_floating_point_v<T>)
    out += format_text("{:.9g}", value);
  else
    out += std::to_string(value);
}
void write(std::string& out, const std::string& value) {
  out += OrderedJson(value).dump(-1, ' ', true, OrderedJson::error_handler_t::replace);
}
void write(std::string& out, WindowSequence::State value) {
  out += format_text("\"{}\"", WindowSequence::kStates.at(static_cast<std::size_t>(value)));
}

template <typename... Values>
void write_list(std::string& out, const Values&... values) {
  out += '[';
  ((write(out, values), out += ','), ...);
  out.back() = ']';
}
void write(std::string& out, const WindowBlock& value) {
  if (value.holders == 0)
    out += value.is_cached ? '1' : '0';
  else
    write_list(out, value.holders, value.owner, value.lane, static_cast<int>(value.is_cached));
}
void write(std::string& out, const WindowSequence::Moment& value) {
  write_list(out, static_cast<std::int64_t>(value.time * 1000), value.state);
}
void write(std::string& out, const WindowStep::Span& value) {
  write_list(out, value.sequence, value.num_tokens, static_cast<int>(value.is_prompt));
}
void write(std::string& out, const Decision& value) {
  write_list(out, value.sequence, static_cast<int>(value.kind), static_cast<int>(value.why), value.count);
}
void write(std::string& out, const WindowMark& value) {
  write_list(out, value.block, static_cast<int>(value.kind), value.step);
}
void write(std::string& out, const WindowEvent& value) {
  const Decision& decision = value.decision;
  write_list(out, value.step, decision.sequence, static_cast<int>(decision.kind),
             static_cast<int>(decision.why), decision.count);
}
void write(std::string& out, const WindowApplied& value) {
  write_list(out, value.seconds, value.num_tokens, value.num_blocks);
}
void write(std::string& out, const WindowSecond& value) {
  write_list(out, value.output_tokens, value.prompt_tokens, value.first_token, value.between_tokens,
             value.cache_use, value.hit_rate, value.busy);
}
template <typename T>
void write(std::string& out, const std::vector<T>& values) {
  out += '[';
  for (const T& value : values) {
    if (out.back() != '[') out += ',';
    write(out, value);
  }
  out += ']';
}
void write(std::string& out, const WindowStep& value) {
  out += '{';
  const auto member = [&](const char* key, const auto& of) {
    out += format_text("{}\"{}\":", out.back() == '{' ? "" : ",", key);
    write(out, of);
  };
  member("id", value.id);
  member("tokens", value.num_tokens);
  member("spans", value.spans);
  member("decisions", value.decisions);
  member("copies", value.num_copies);
  member("saves", value.num_saves);
  member("restores", value.num_restores);
  out += '}';
}

// Writes the patch of one object, member by member; before: null where it was not there.
template <typename Object>
class Patch {
 public:
  Patch(std::string& out, const Object* before, const Object& now)
      : out_(out), before_(before), now_(now), begin_(out.size()) {
    out_ += '{';
  }
  void close() { out_ += '}'; }
  bool is_empty() const { return out_.size() == begin_ + 1; }

  template <typename T>
  Patch& value(const char* name, T Object::*member) {
    if (before_ != nullptr && before_->*member == now_.*member) return *this;
    key(name);
    write(out_, now_.*member);
    return *this;
  }
  // An object with its indices as keys, of those that changed.
  template <typename T>
  Patch& each(const char* name, std::vector<T> Object::*member) {
    static const std::vector<T> kNone;
    const std::vector<T>&old = before_ == nullptr ? kNone : before_->*member, &now = now_.*member;
    if (before_ != nullptr && old == now) return *this;
    key(name);
    out_ += '{';
    for (std::size_t i = 0; i < now.size(); ++i) {
      if (i < old.size() && old[i] == now[i]) continue;
      key(std::to_string(i));
      write(out_, now[i]);
    }
    for (std::size_t i = now.size(); i < old.size(); ++i) {
      key(std::to_string(i));
      out_ += "null";
    }
    out_ += '}';
    return *this;
  }
  // The same with a map's keys. write_one(out, before, now) writes a value, or nothing where it is as before.
  template <typename K, typename T, typename WriteOne>
  Patch& each(const char* name, std::map<K, T> Object::*member, const WriteOne& write_one) {
    static const std::map<K, T> kNone;
    const std::map<K, T>&old = before_ == nullptr ? kNone : before_->*member, &now = now_.*member;
    key(name);
    out_ += '{';
    for (const auto& [id, of] : now) {
      const auto found = old.find(id);
      const std::size_t size = out_.size();
      key(std::to_string(id));
      const std::size_t behind_key = out_.size();
      write_one(out_, found == old.end() ? nullptr : &found->second, of);
      if (out_.size() == behind_key) out_.resize(size);
    }
    for (const auto& [id, of] : old) {
      if (now.contains(id)) continue;
      key(std::to_string(id));
      out_ += "null";
    }
    out_ += '}';
    return *this;
  }

 private:
  void key(const std::string& name) {
    if (out_.back() != '{') out_ += ',';
    out_ += format_text("\"{}\":", name);
  }

  std::string& out_;
  const Object* before_;
  const Object& now_;
  std::size_t begin_;
};

void write_sequence(std::string& out, const WindowSequence* before, const WindowSequence& now) {
  Patch<WindowSequence> patch(out, before, now);
  patch.value("state", &WindowSequence::state)
      .value("end", &WindowSequence::end)
      .value("request", &WindowSequence::request)
      .value("prompt", &WindowSequence::num_prompt)
      .value("tokens", &WindowSequence::num_tokens)
      .value("computed", &WindowSequence::num_computed)
      .value("cached", &WindowSequence::num_cached)
      .value("most", &WindowSequence::max_tokens)
      .value("saved", &WindowSequence::num_saved)
      .each("table", &WindowSequence::table)
      .each("life", &WindowSequence::life)
      .value("text", &WindowSequence::text);
  if (before != nullptr && patch.is_empty())
    out.pop_back();
  else
    patch.close();
}

}  // namespace

std::string frame_patch(const WindowFrame* before, const WindowFrame& now) {
  const auto write_second = [](std::string& to, const WindowSecond* old, const WindowSecond& second) {
    if (old == nullptr || *old != second) write(to, second);
  };
  std::string out;
  Patch<WindowFrame> patch(out, before, now);
  patch.value("time", &WindowFrame::time)
      .each("blocks", &WindowFrame::blocks)
      .each("host", &WindowFrame::host_blocks)
      .each("slots", &WindowFrame::slots)
      .each("sequences", &WindowFrame::sequences, write_sequence)
      .value("step", &WindowFrame::step)
      .value("applied", &WindowFrame::applied)
      .value("events", &WindowFrame::events)
      .value("marks", &WindowFrame::marks)
      .each("seconds", &WindowFrame::seconds, write_second);
  patch.close();
  return out;
}

std::string about_patch(const SchedulerConfig& config, const WindowOptions& options, std::uint64_t num_steps,
                        double seconds) {
  const WindowLimits& limits = options.limits;
  return to_line({{"about",
                   {{"model", options.model},
                    {"device", options.device},
                    {"dtype", options.dtype},
                    {"steps", num_steps},
                    {"seconds", seconds},
                    {"texts", options.with_text},
                    {"block_size", config.layout.block_size},
                    {"windows", config.layout.windows},
                    {"blocks", config.num_blocks},
                    {"host_blocks", config.num_host_blocks},
                    {"slots", config.num_state_slots},
                    {"seats", config.max_num_seqs},
                    {"budget", config.max_num_batched_tokens},
                    {"prefix_caching", config.enable_prefix_caching},
                    {"limits",
                     {{"read_gb_per_s", limits.read_gb_per_s},
                      {"matrix_gflop_per_s", limits.matrix_gflop_per_s},
                      {"weight_bytes", limits.weight_bytes},
                      {"expert_bytes", limits.expert_bytes},
                      {"routed_share", limits.routed_share},
                      {"block_bytes", limits.block_bytes},
                      {"flop_per_token", limits.flop_per_token}}}}}});
}

}  // namespace quire::server
