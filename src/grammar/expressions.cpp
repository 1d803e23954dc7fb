#include "grammar/expressions.h"

#include <algorithm>
#include <map>
#include <random>

#include "base/threads.h"
#include "grammar/grammar.h"

namespace quire::grammar {
namespace {

// Alternatives with more children than this are kept as they are inside others.
constexpr std::uint32_t kMaxFlattened = 16;
constexpr unsigned kMaxDepth = 1000;
// Of what is kept beside an expression: its place in tables, and what is known of it.
constexpr std::size_t kBytesBeside = 40;

// Of the table: an expression, with a part of its hash, so that few others are looked at.
std::uint64_t slot_of(ExprId id, const ExprHash& hash) { return (hash.first >> 32 << 32) | id; }

// SipHash (Aumasson and Bernstein, 2012) of 128 bits, with one round a word. Its key is this process's own,
// so that nobody can write two sources whose expressions have one hash: what is kept by it is not compared.
ExprHash keyed_hash(std::span<const std::uint64_t> words) {
  static const std::array<std::uint64_t, 2> key = [] {
    std::random_device random;
    const auto word = [&] { return std::uint64_t{random()} << 32 | random(); };
    return std::array{word(), word()};
  }();
  std::uint64_t a = key[0] ^ 0x736F6D6570736575u, b = key[1] ^ 0x646F72616E646F83u,
                c = key[0] ^ 0x6C7967656E657261u, d = key[1] ^ 0x7465646279746573u;
  const auto mix = [&] {
    a += b;
    c += d;
    b = std::rotl(b, 13) ^ a;
    d = std::rotl(d, 16) ^ c;
    a = std::rotl(a, 32) + d;
    c += b;
    d = std::rotl(d, 21) ^ a;
    b = std::rotl(b, 17) ^ c;
    c = std::rotl(c, 32);
  };
  const auto mixed = [&] {
    for (int round = 0; round < 3; ++round) mix();
    return a ^ b ^ c ^ d;
  };
  for (const std::uint64_t word : words) {
    d ^= word;
    mix();
    a ^= word;
  }
  c ^= 0xEE;
  const std::uint64_t first = mixed();
  b ^= 0xDD;
  return {first, mixed()};
}

}  // namespace

void MemoryShare::take(std::size_t bytes) {
  if (budget_->bytes.fetch_add(bytes) + bytes > budget_->limit) {
    budget_->bytes -= bytes;
    throw LimitError(
        format_text("the grammar takes more than its {} MiB of memory; a smaller one, or one with less "
                    "repetition, would do",
                    budget_->limit >> 20));
  }
  bytes_ += bytes;
}

void MemoryShare::give(std::size_t bytes) {
  bytes_ -= bytes;
  budget_->bytes -= bytes;
}

Expressions::Depth::Depth(Expressions& expressions, unsigned weight)
    : depth_(expressions.depth_), weight_(weight) {
  if (depth_ + weight > kMaxDepth) throw LimitError("the grammar is nested too deep");
  depth_ += weight;
}

Expressions::Expressions() : table_(1024, 0) {
  exprs_.push_back({.kind = ExprKind::kDead, .dead = true, .hash = {1, 1}});
  ranges_.emplace_back();
  intern({.kind = ExprKind::kEpsilon, .nullable = true});
  intern({.kind = ExprKind::kNot, .nullable = true, .of = {kNothing}});
}

void Expressions::start_clock(std::chrono::nanoseconds limit, std::stop_token stop) {
  time_limit_ = limit;
  clock_start_ = std::chrono::nanoseconds(-1);
  stop_ = std::move(stop);
  steps_ = 0;
}

std::chrono::nanoseconds Expressions::time_taken() const {
  return clock_start_.count() < 0 ? std::chrono::nanoseconds(0) : thread_time() - clock_start_;
}

void Expressions::check_time() {
  steps_ = 0;
  if (stop_.stop_requested()) throw Stopped();
  if (clock_start_.count() < 0)
    clock_start_ = thread_time();
  else if (thread_time() - clock_start_ > time_limit_)
    throw LimitError("the grammar takes longer than its limit; a simpler one would do");
}

// Whether it is nullable, dead and regular, from those below it.
void Expressions::set_flags(Expr& expr, std::span<const ExprId> children) const {
  const auto all = [&](auto flag) {
    return std::ranges::all_of(children, [&](ExprId child) { return exprs_[child].*flag; });
  };
  const auto any = [&](auto flag) {
    return std::ranges::any_of(children, [&](ExprId child) { return exprs_[child].*flag; });
  };
  expr.regular = expr.regular && all(&Expr::regular);
  switch (expr.kind) {
    case ExprKind::kConcat:
    case ExprKind::kLexeme:
      expr.nullable = all(&Expr::nullable);
      expr.dead = any(&Expr::dead);
      break;
    case ExprKind::kAnyOf:
      expr.nullable = any(&Expr::nullable);
      expr.dead = all(&Expr::dead);
      break;
    case ExprKind::kAllOf:
      expr.nullable = all(&Expr::nullable);
      break;
    case ExprKind::kNot:
      expr.nullable = !all(&Expr::nullable);
      break;
    case ExprKind::kRepeat:
      expr.nullable = expr.b() == 0 || all(&Expr::nullable);
      expr.dead = expr.b() > 0 && all(&Expr::dead);
      break;
    default:
      break;
  }
}

ExprId Expressions::intern(Expr expr, std::span<const ExprId> listed, const ByteSet* set) {
  step(1 + listed.size());
  const std::span own = std::span<const ExprId>(expr.of).first(expr.num_children());
  std::array<std::uint64_t, 6> words = {static_cast<std::uint64_t>(expr.kind)};
  auto end = words.begin() + 1;
  const auto add = [&](const auto& numbers) { end = std::ranges::copy(numbers, end).out; };
  if (set != nullptr) {
    add(words_of(*set));
  } else if (!listed.empty()) {
    for (const ExprId child : listed) {  // whatever order their numbers have here
      words[1] += exprs_[child].hash.first;
      words[2] += exprs_[child].hash.second;
    }
    end += 2;
  } else {
    for (const ExprId child : own) add(std::array{exprs_[child].hash.first, exprs_[child].hash.second});
    add(std::span(expr.of).subspan(own.size()));
  }
  expr.hash = keyed_hash({words.begin(), end});
  std::size_t slot = expr.hash.first & (table_.size() - 1);
  for (; table_[slot] != 0; slot = (slot + 1) & (table_.size() - 1))
    if (const auto known = static_cast<ExprId>(table_[slot]);
        slot_of(known, expr.hash) == table_[slot] && exprs_[known].hash == expr.hash)
      return known;
  memory_.take(sizeof(Expr) + sizeof(EdgeRange) + kBytesBeside + listed.size_bytes() +
               (set != nullptr ? sizeof(ByteSet) : 0));
  set_flags(expr, listed.empty() ? own : listed);
  if (set != nullptr) {
    expr.of = {static_cast<std::uint32_t>(sets_.size())};
    sets_.push_back(*set);
  } else if (!listed.empty()) {
    expr.of = {static_cast<std::uint32_t>(children_.size()), static_cast<std::uint32_t>(listed.size())};
    children_.insert(children_.end(), listed.begin(), listed.end());
  }
  const auto id = static_cast<ExprId>(exprs_.size());
  table_[slot] = slot_of(id, expr.hash);
  exprs_.push_back(expr);
  ranges_.emplace_back();
  if (exprs_.size() * 2 > table_.size()) grow_table();
  return id;
}

void Expressions::grow_table() {
  table_.assign(table_.size() * 2, 0);
  for (ExprId id = 1; id < exprs_.size(); ++id) {
    std::size_t slot = exprs_[id].hash.first & (table_.size() - 1);
    while (table_[slot] != 0) slot = (slot + 1) & (table_.size() - 1);
    table_[slot] = slot_of(id, exprs_[id].hash);
  }
}

bool Expressions::dead(ExprId id) {
  const Expr& expr = exprs_[id];
  if (expr.kind == ExprKind::kAllOf || expr.kind == ExprKind::kNot) return !matches_something(id);
  return expr.dead;
}

ExprId Expressions::bytes(const ByteSet& set) {
  if (set.none()) return kNothing;
  return intern({.kind = ExprKind::kBytes}, {}, &set);
}

ExprId Expressions::literal(std::string_view text) {
  ExprId result = kEmpty;
  for (std::size_t i = text.size(); i > 0; --i)
    result = concat(bytes(bytes_of(text.substr(i - 1, 1))), result);
  return result;
}

ExprId Expressions::concat(ExprId a, ExprId b) {
  if (dead(a) || dead(b)) return kNothing;
  if (a == kEmpty) return b;
  if (b == kEmpty) return a;
  const Expr head = exprs_[a];
  // What comes first stands alone, so that equal states are mostly one; the rest is put right when it comes
  // first.
  if (head.kind == ExprKind::kConcat) {
    b = intern({.kind = ExprKind::kConcat, .of = {head.b(), b}});
    a = head.a();
  }
  return intern({.kind = ExprKind::kConcat, .of = {a, b}});
}

ExprId Expressions::concat(const std::vector<ExprId>& parts) {
  ExprId result = kEmpty;
  for (std::size_t i = parts.size(); i-- > 0;) result = concat(parts[i], result);
  return result;
}

ExprId Expressions::any_of(std::vector<ExprId> parts) {
  std::vector<ExprId> flat;
  ByteSet set;
  step(parts.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const ExprId part = parts[i];
    if (dead(part)) continue;
    if (part == kAnything) return kAnything;
    if (exprs_[part].kind == ExprKind::kAnyOf && exprs_[part].b() <= kMaxFlattened) {
      const auto inner = children(part);
      parts.insert(parts.end(), inner.begin(), inner.end());
    } else if (exprs_[part].kind == ExprKind::kBytes) {
      set = set | byte_set(part);
    } else {
      flat.push_back(part);
    }
  }
  if (set.any()) flat.push_back(bytes(set));
  // One beginning with several continuations is looked at once, so that what is ambiguous does not multiply.
  const auto head = [&](ExprId part) {
    return exprs_[part].kind == ExprKind::kConcat ? exprs_[part].a() : part;
  };
  std::ranges::sort(flat, {}, [&](ExprId part) { return std::pair(head(part), part); });
  flat.erase(std::unique(flat.begin(), flat.end()), flat.end());
  std::size_t kept = 0;
  for (std::size_t i = 0, end = 0; i < flat.size(); i = end) {
    const ExprId first = head(flat[i]);
    while (end < flat.size() && head(flat[end]) == first) ++end;
    if (end - i > 1 && (exprs_[first].kind == ExprKind::kLexeme || !exprs_[flat[i]].regular)) {
      std::vector<ExprId> tails;
      for (std::size_t j = i; j < end; ++j) {
        const ExprId tail = flat[j] == first ? kEmpty : exprs_[flat[j]].b();
        const auto inner = children(tail);
        if (exprs_[tail].kind == ExprKind::kAnyOf)
          tails.insert(tails.end(), inner.begin(), inner.end());
        else
          tails.push_back(tail);
      }
      const Depth deeper(*this);
      flat[kept++] = intern({.kind = ExprKind::kConcat, .of = {first, any_of(std::move(tails))}});
      i = end;
      continue;
    }
    while (i < end) flat[kept++] = flat[i++];
  }
  flat.resize(kept);
  std::ranges::sort(flat);
  if (flat.empty()) return kNothing;
  return flat.size() == 1 ? flat.front() : intern({.kind = ExprKind::kAnyOf}, flat);
}

ExprId Expressions::raw_all_of(std::vector<ExprId> parts) {
  std::vector<ExprId> flat;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const ExprId part = parts[i];
    if (part == kNothing) return kNothing;
    if (exprs_[part].kind == ExprKind::kAllOf) {
      const auto inner = children(part);
      parts.insert(parts.end(), inner.begin(), inner.end());
    } else if (part != kAnything) {
      flat.push_back(exprs_[part].kind == ExprKind::kLexeme ? exprs_[part].a() : part);
    }
  }
  std::ranges::sort(flat);
  flat.erase(std::unique(flat.begin(), flat.end()), flat.end());
  if (flat.empty()) return kAnything;
  return flat.size() == 1 ? flat.front() : intern({.kind = ExprKind::kAllOf}, flat);
}

ExprId Expressions::all_of(std::vector<ExprId> parts) {
  const ExprId result = raw_all_of(std::move(parts));
  return dead(result) ? kNothing : result;
}

ExprId Expressions::complement(ExprId a) {
  if (a == kAnything) return kNothing;
  if (exprs_[a].kind == ExprKind::kLexeme) return complement(exprs_[a].a());
  return exprs_[a].kind == ExprKind::kNot ? exprs_[a].a() : intern({.kind = ExprKind::kNot, .of = {a}});
}

ExprId Expressions::repeat(ExprId a, std::uint32_t min, std::uint32_t max) {
  if (min > max) return kNothing;
  if (max == 0 || a == kEmpty) return kEmpty;
  if (dead(a)) return min == 0 ? kEmpty : kNothing;
  if (min == 1 && max == 1) return a;
  if (exprs_[a].nullable) min = 0;
  return intern({.kind = ExprKind::kRepeat, .of = {a, min, max}});
}

ExprId Expressions::lexeme(ExprId a, bool is_word) {
  if (dead(a)) return kNothing;
  const ExprKind kind = exprs_[a].kind;
  const bool is_short = kind == ExprKind::kEpsilon || kind == ExprKind::kBytes;
  if (is_short || kind == ExprKind::kLexeme || !exprs_[a].regular) return a;
  return intern({.kind = ExprKind::kLexeme, .of = {a, is_word}});
}

ExprId Expressions::token(int id) {
  if (tokens_.insert(id).second) memory_.take(kBytesBeside);
  return intern({.kind = ExprKind::kToken, .regular = false, .of = {static_cast<std::uint32_t>(id)}});
}

ExprId Expressions::multiple(std::uint32_t factor, std::uint32_t places) {
  return intern({.kind = ExprKind::kMultiple, .nullable = true, .of = {factor, 0, places << 1}});
}

ExprId Expressions::literals(std::vector<std::string_view> texts) {
  std::ranges::sort(texts);
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  return texts.empty() ? kNothing : literals(texts, 0);
}

// Of sorted texts that agree before `from`.
ExprId Expressions::literals(std::span<const std::string_view> texts, std::size_t from) {
  const std::string_view first = texts.front(), last = texts.back();
  const auto end = static_cast<std::size_t>(std::ranges::mismatch(first, last).in1 - first.begin());
  std::vector<ExprId> parts;
  std::size_t i = 0;
  if (first.size() == end) {
    parts.push_back(kEmpty);
    i = 1;
  }
  while (i < texts.size()) {
    const char byte = texts[i][end];
    std::size_t next = i + 1;
    while (next < texts.size() && texts[next][end] == byte) ++next;
    parts.push_back(literals(texts.subspan(i, next - i), end));
    i = next;
  }
  return concat(literal(first.substr(from, end - from)), any_of(std::move(parts)));
}

std::uint32_t Expressions::new_rule() {
  rules_.push_back(kNothing);
  return static_cast<std::uint32_t>(rules_.size() - 1);
}

void Expressions::finish() {
  for (Expr& expr : exprs_)
    if (!expr.regular && expr.kind != ExprKind::kToken) {
      expr.dead = true;
      expr.nullable = false;
    }
  for (bool changed = true; changed;) {
    changed = false;
    check_time();
    for (ExprId id = 0; id < exprs_.size(); ++id) {
      Expr& expr = exprs_[id];
      const Expr before = expr;
      if (expr.kind == ExprKind::kRule) {
        const Expr& rule_body = exprs_[rules_[expr.a()]];
        expr.nullable = rule_body.nullable;
        expr.dead = rule_body.dead;
      } else if (expr.kind == ExprKind::kMembers) {
        set_member_flags(expr);
      } else if (!expr.regular) {
        set_flags(expr, children(id));
      }
      changed |= before.nullable != expr.nullable || before.dead != expr.dead;
    }
  }
  for (ExprId id = 0, end = static_cast<ExprId>(exprs_.size()); id < end; ++id)
    if (exprs_[id].kind == ExprKind::kRule) edges(id);
}

ExprId Expressions::adopt(const Expressions& other, ExprId id, std::size_t num_common) {
  std::map<ExprId, ExprId> adopted = {{id, id}};
  for (auto at = adopted.rbegin(); at != adopted.rend() && at->first >= num_common; ++at)
    for (const ExprId part : other.children(at->first)) adopted.emplace(part, part);
  for (auto& [at, here] : adopted) {
    if (at < num_common) continue;
    Expr expr = other.exprs_[at];
    std::vector<ExprId> parts = other.copied_children(at);
    for (ExprId& part : parts) part = adopted.at(part);
    if (expr.num_children() > 0) std::ranges::copy(std::exchange(parts, {}), expr.of.begin());
    if (expr.kind == ExprKind::kMembers) expr.of[1] = seen_number(other.seen_[expr.b()]);
    std::ranges::sort(parts);
    here = intern(expr, parts, expr.kind == ExprKind::kBytes ? &other.sets_[expr.a()] : nullptr);
  }
  return adopted.at(id);
}

}  // namespace quire::grammar
