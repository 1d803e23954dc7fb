#include <type_traits>

#include "base/format.h"
#include "base/json.h"
#include "server/api_response.h"
#include "server/window/window_frame.h"

namespace quire::server {
namespace {

// What a vector has at an index, or a map under a key; null where there is nothing.
template <typename T>
const T* find(const std::vector<T>& all, std::size_t index) {
  return index < all.size() ? &all[index] : nullptr;
}
template <typename K, typename T>
const T* find(const std::map<K, T>& all, K key) {
  const auto found = all.find(key);
  return found == all.end() ? nullptr : &found->second;
}
template <typename T, typename Use>
void for_each(const std::vector<T>& all, const Use& use) {
  for (std::size_t i = 0; i < all.size(); ++i) use(i, all[i]);
}
template <typename K, typename T, typename Use>
void for_each(const std::map<K, T>& all, const Use& use) {
  for (const auto& [key, value] : all) use(key, value);
}

// A member of an object, under a name: the whole value where it changed; or an object of the elements that
// changed, with their indices or keys. always: also where none did.
template <typename Object, typename T>
struct Value {
  const char* name;
  T Object::*member;
};
template <typename Object, typename All>
struct Each {
  const char* name;
  All Object::*member;
  bool always = false;
};

class PatchWriter {
 public:
  std::string json;

  // before: null where it was not there.
  void write_change(const WindowFrame* before, const WindowFrame& now) {
    using Frame = WindowFrame;
    write_patch(before, now, Value{"time", &Frame::time}, Each{"blocks", &Frame::blocks},
                Each{"host", &Frame::host_blocks}, Each{"slots", &Frame::slots},
                Each{"sequences", &Frame::sequences, true}, Value{"step", &Frame::step},
                Value{"applied", &Frame::applied}, Value{"events", &Frame::events},
                Value{"marks", &Frame::marks}, Each{"seconds", &Frame::seconds, true});
  }

 private:
  void write_change(const WindowSequence* before, const WindowSequence& now) {
    using Sequence = WindowSequence;
    write_patch(before, now, Value{"state", &Sequence::state}, Value{"end", &Sequence::end},
                Value{"request", &Sequence::request}, Value{"prompt", &Sequence::num_prompt},
                Value{"tokens", &Sequence::num_tokens}, Value{"computed", &Sequence::num_computed},
                Value{"cached", &Sequence::num_cached}, Value{"most", &Sequence::max_tokens},
                Value{"saved", &Sequence::num_saved}, Each{"table", &Sequence::table},
                Each{"life", &Sequence::life}, Value{"text", &Sequence::text});
  }
  template <typename T>
  void write_change(const T* /*before*/, const T& now) {
    write(now);
  }
  void write(const WindowStep& value) {
    using Step = WindowStep;
    write_patch<Step>(nullptr, value, Value{"id", &Step::id}, Value{"tokens", &Step::num_tokens},
                      Value{"spans", &Step::spans}, Value{"decisions", &Step::decisions},
                      Value{"copies", &Step::num_copies}, Value{"saves", &Step::num_saves},
                      Value{"restores", &Step::num_restores});
  }

  template <typename Object, typename... Members>
  void write_patch(const Object* before, const Object& now, const Members&... members) {
    json += '{';
    (write_member(before, now, members), ...);
    json += '}';
  }
  template <typename Object, typename T>
  void write_member(const Object* before, const Object& now, const Value<Object, T>& of) {
    if (before != nullptr && before->*of.member == now.*of.member) return;
    key(of.name);
    write(now.*of.member);
  }
  template <typename Object, typename All>
  void write_member(const Object* before, const Object& now, const Each<Object, All>& of) {
    static const All kNone;
    const All &old = before == nullptr ? kNone : before->*of.member, &all = now.*of.member;
    if (before != nullptr && !of.always && old == all) return;
    key(of.name);
    json += '{';
    for_each(all, [&](auto at, const auto& element) {
      const auto* const was = find(old, at);
      if (was != nullptr && *was == element) return;
      key(at);
      write_change(was, element);
    });
    for_each(old, [&](auto at, const auto&) {
      if (find(all, at) != nullptr) return;
      key(at);
      json += "null";
    });
    json += '}';
  }
  template <typename Name>
  void key(const Name& name) {
    json += format_text("{}\"{}\":", json.back() == '{' ? "" : ",", name);
  }

  // A bool is 0 or 1, an enumerator its number.
  template <typename T>
  requires std::is_arithmetic_v<T> || std::is_enum_v<T>
  void write(T value) {
    if constexpr (std::is_floating_point_v<T>)
      json += format_text("{:.9g}", value);
    else
      json += std::to_string(static_cast<std::int64_t>(value));
  }
  void write(const std::string& value) {
    json += OrderedJson(value).dump(-1, ' ', true, OrderedJson::error_handler_t::replace);
  }
  void write(WindowSequence::State value) {
    json += format_text("\"{}\"", WindowSequence::kStates.at(static_cast<std::size_t>(value)));
  }
  template <typename T>
  void write(const std::vector<T>& values) {
    json += '[';
    for (const T& value : values) {
      if (json.back() != '[') json += ',';
      write(value);
    }
    json += ']';
  }
  template <typename... Values>
  void write_list(const Values&... values) {
    json += '[';
    ((write(values), json += ','), ...);
    json.back() = ']';
  }
  void write(const WindowBlock& value) {
    if (value.holders == 0)
      write(value.is_cached);
    else
      write_list(value.holders, value.owner, value.lane, value.is_cached);
  }
  void write(const WindowSequence::Moment& value) {
    write_list(static_cast<std::int64_t>(value.time * 1000), value.state);
  }
  void write(const WindowStep::Span& value) { write_list(value.sequence, value.num_tokens, value.is_prompt); }
  void write(const Decision& value) { write_list(value.sequence, value.kind, value.why, value.count); }
  void write(const WindowMark& value) { write_list(value.block, value.kind, value.step); }
  void write(const WindowEvent& value) {
    const auto& [sequence, kind, why, count] = value.decision;
    write_list(value.step, sequence, kind, why, count);
  }
  void write(const WindowApplied& value) { write_list(value.seconds, value.num_tokens, value.num_blocks); }
  void write(const WindowSecond& value) {
    write_list(value.output_tokens, value.prompt_tokens, value.first_token, value.between_tokens,
               value.cache_use, value.hit_rate, value.busy);
  }
};

}  // namespace

std::string frame_patch(const WindowFrame* before, const WindowFrame& now) {
  PatchWriter writer;
  writer.write_change(before, now);
  return std::move(writer.json);
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
