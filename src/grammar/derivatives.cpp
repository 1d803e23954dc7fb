// Derivatives of expressions by bytes.
#include <algorithm>
#include <array>
#include <deque>
#include <unordered_set>
#include <utility>

#include "grammar/expressions.h"
#include "grammar/grammar.h"

namespace quire::grammar {
namespace {

constexpr std::size_t kMaxExplored = 200'000;  // states of one conjunction
constexpr std::size_t kBytesKnown = 48;        // of an entry of distances_
constexpr unsigned kMaxLoosened = 8;           // levels of an expression, and parts of one
constexpr std::size_t kNearest = 2000;
constexpr std::uint32_t kInFraction = 1;  // of Expr::c of kMultiple; above it the places left

}  // namespace

// Not inlined, since edges() goes deeper into itself before it comes here.
[[gnu::noinline]] std::vector<Edge> Expressions::merge(std::span<const std::vector<Edge>> lists,
                                                       ExprKind kind) {
  // A class of bytes leads to the same in all lists seen. It knows the class that it was a part of, and what
  // the last edge that took bytes of it made of those.
  struct Class {
    std::uint32_t whole;
    ExprId next;
    std::uint32_t last_edge = 0, taken = 0;
  };
  std::vector<Class> classes = {{0, kNothing}};
  std::array<std::uint32_t, 256> class_of{};
  std::uint32_t edge_number = 0;
  for (const auto& list : lists) {
    for (const Edge& edge : list) {
      ++edge_number;
      step();
      for_each_byte(edge.bytes, [&](unsigned byte) {
        const std::uint32_t old = class_of[byte];
        if (classes[old].last_edge != edge_number) {
          classes[old].last_edge = edge_number;
          classes[old].taken = static_cast<std::uint32_t>(classes.size());
          classes.push_back({old, edge.next});
        }
        class_of[byte] = classes[old].taken;
      });
    }
  }
  std::vector<ByteSet> sets(classes.size());
  for (unsigned byte = 0; byte < 256; ++byte) sets[class_of[byte]].set(byte);
  std::vector<Edge> result;
  for (std::uint32_t id = 1; id < sets.size(); ++id) {
    if (sets[id].none()) continue;
    std::vector<ExprId> targets;
    for (std::uint32_t at = id; at != 0; at = classes[at].whole) targets.push_back(classes[at].next);
    if (kind == ExprKind::kAllOf && targets.size() < lists.size()) continue;
    const ExprId next =
        kind == ExprKind::kAllOf ? raw_all_of(std::move(targets)) : any_of(std::move(targets));
    if (next == kNothing) continue;
    const auto known = std::ranges::find(result, next, &Edge::next);
    if (known == result.end())
      result.push_back({sets[id], next});
    else
      known->bytes = known->bytes | sets[id];
  }
  return result;
}

std::vector<Edge> Expressions::edges_of_concat(ExprId a, ExprId b, bool with_b) {
  std::vector<Edge> first = copied_edges(a);
  for (Edge& edge : first) edge.next = concat(edge.next, b);
  std::erase_if(first, [](const Edge& edge) { return edge.next == kNothing; });
  if (!with_b) return first;
  std::vector<Edge> second = copied_edges(b);
  if (second.empty()) return first;
  return merge(std::array{std::move(first), std::move(second)}, ExprKind::kAnyOf);
}

std::vector<Edge> Expressions::edges_of_parts(ExprId id) {
  const ExprKind kind = exprs_[id].kind;
  std::vector<std::vector<Edge>> lists;
  for (const ExprId part : copied_children(id)) {
    // A complement's own complement may be dead, which only the whole of a conjunction shows.
    const bool raw = kind == ExprKind::kAllOf && exprs_[part].kind == ExprKind::kNot;
    lists.push_back(raw ? raw_edges(part) : copied_edges(part));
  }
  if (kind != ExprKind::kNot) return merge(lists, kind);
  ByteSet others = all_bytes();
  std::vector<Edge> result;
  for (const Edge& edge : lists.front()) {
    others = others & ~edge.bytes;
    const ExprId next = complement(edge.next);
    if (next != kNothing) result.push_back({edge.bytes, next});
  }
  if (others.any()) result.push_back({others, kAnything});
  return result;
}

std::vector<Edge> Expressions::edges_of_multiple(const Expr& expr) {
  const std::uint32_t left = expr.c() >> 1;
  const bool in_fraction = (expr.c() & kInFraction) != 0;
  const auto state = [&](std::uint64_t remainder, std::uint32_t c) {
    std::uint64_t whole = remainder;
    for (std::uint32_t i = 0; i < c >> 1; ++i) whole = whole * 10 % expr.a();
    return intern({.kind = ExprKind::kMultiple,
                   .nullable = whole == 0,
                   .of = {expr.a(), static_cast<std::uint32_t>(remainder), c}});
  };
  std::vector<Edge> result;
  if (in_fraction && left == 0) {
    if (expr.nullable) result.push_back({bytes_of("0"), state(expr.b(), expr.c())});
    return result;
  }
  std::unordered_map<ExprId, ByteSet> by_next;
  for (unsigned digit = 0; digit < 10; ++digit)
    by_next[state((expr.b() * std::uint64_t{10} + digit) % expr.a(), in_fraction ? expr.c() - 2 : expr.c())]
        .set('0' + digit);
  for (const auto& [next, bytes] : by_next) result.push_back({bytes, next});
  if (!in_fraction) result.push_back({bytes_of("."), state(expr.b(), expr.c() | kInFraction)});
  return result;
}

std::vector<Edge> Expressions::compute_edges(ExprId id) {
  const Expr expr = exprs_[id];
  if (expr.dead) return {};
  switch (expr.kind) {
    case ExprKind::kBytes:
      return {{byte_set(id), kEmpty}};
    case ExprKind::kConcat:
      return edges_of_concat(expr.a(), expr.b(), nullable(expr.a()));
    case ExprKind::kRepeat:
      return edges_of_concat(expr.a(), one_less(expr), false);
    case ExprKind::kAnyOf:
      return edges_of_parts(id);
    case ExprKind::kAllOf:
    case ExprKind::kNot: {
      std::vector<Edge> result = raw_edges(id);
      std::erase_if(result, [&](const Edge& edge) { return dead(edge.next); });
      return result;
    }
    case ExprKind::kLexeme: {
      std::vector<Edge> result = copied_edges(expr.a());
      for (Edge& edge : result) edge.next = lexeme(edge.next, expr.b() != 0);
      return result;
    }
    case ExprKind::kRule:
    case ExprKind::kMembers:
      return copied_edges(body(id));
    case ExprKind::kMultiple:
      return edges_of_multiple(expr);
    default:
      return {};
  }
}

std::span<const Edge> Expressions::edges(ExprId id) {
  if (!ranges_[id].known) {
    const Depth deeper(*this);
    if (ranges_[id].open)
      throw GrammarError(
          "a rule begins with itself (left recursion), perhaps by way of others; repetition would do");
    ranges_[id].open = exprs_[id].kind == ExprKind::kRule;  // finish() is the first to ask for those
    const std::vector<Edge> computed = compute_edges(id);
    memory_.take(computed.size() * sizeof(Edge));
    ranges_[id] = {static_cast<std::uint32_t>(edges_.size()), static_cast<std::uint32_t>(computed.size()),
                   true};
    edges_.insert(edges_.end(), computed.begin(), computed.end());
  }
  return std::span(edges_).subspan(ranges_[id].first, ranges_[id].size);
}

const std::vector<Edge>& Expressions::raw_edges(ExprId id) {
  const auto found = raw_edges_.find(id);
  if (found != raw_edges_.end()) return found->second;
  std::vector<Edge> computed = edges_of_parts(id);
  memory_.take(computed.size() * sizeof(Edge) + 64);
  return raw_edges_.emplace(id, std::move(computed)).first->second;
}

// The nearest states are looked at first: whole lengths of what is counted lie beyond them. Then the latest,
// which soon lead far.
bool Expressions::matches_something(ExprId id) {
  struct Visit {
    ExprId id;
    std::size_t from;
  };
  std::vector<Visit> visits;
  std::deque<std::size_t> open;  // of visits
  std::unordered_set<ExprId> seen;
  const auto matches = [&](ExprId at, std::size_t from) {
    const ExprKind kind = exprs_[at].kind;
    if (at == kAnything || exprs_[at].nullable) return true;
    if (kind != ExprKind::kAllOf && kind != ExprKind::kNot) return !exprs_[at].dead;
    if (const auto known = distances_.find(at); known != distances_.end()) return known->second != kNoLimit;
    if (seen.insert(at).second) {
      open.push_back(visits.size());
      visits.push_back({at, from});
    }
    return false;
  };
  if (matches(id, 0)) return true;
  while (!open.empty()) {
    const bool is_near = visits.size() < kNearest;
    const std::size_t i = is_near ? open.front() : open.back();
    is_near ? open.pop_front() : open.pop_back();
    if (visits.size() > kMaxExplored)
      throw LimitError("two of the grammar's conditions take too long to combine");
    for (const Edge& edge : raw_edges(visits[i].id)) {
      if (!matches(edge.next, i)) continue;
      memory_.take(kBytesKnown);
      std::uint32_t bytes = distance(edge.next);
      for (std::size_t at = i;; at = visits[at].from) {
        distances_.try_emplace(visits[at].id, ++bytes);
        if (at == 0) return true;
      }
    }
  }
  if (visits.empty()) return false;
  memory_.take(visits.size() * kBytesKnown);
  for (const Visit& visit : visits) distances_[visit.id] = kNoLimit;
  return false;
}

std::uint32_t Expressions::distance(ExprId id) {
  const Expr& expr = exprs_[id];
  if (expr.kind == ExprKind::kConcat || expr.kind == ExprKind::kLexeme) return distance(expr.a());
  if (expr.kind == ExprKind::kAllOf && !expr.nullable) {
    const auto known = distances_.find(id);
    return known == distances_.end() ? kNoLimit : known->second;
  }
  std::uint32_t most = 0;
  if (expr.kind == ExprKind::kAnyOf)
    for (const ExprId part : children(id)) most = std::max(most, distance(part));
  return most;
}

Expressions::Loosened Expressions::loosen(ExprId id, std::uint32_t least, unsigned depth) {
  const Expr expr = exprs_[id];
  if (expr.kind == ExprKind::kRepeat && expr.c() != kNoLimit && expr.c() >= least)
    return {repeat(expr.a(), expr.b(), kNoLimit), expr.c()};
  Loosened made{.id = id, .has_conjunction = expr.kind == ExprKind::kAllOf};
  std::vector<ExprId> loose = copied_children(id);
  if (expr.kind == ExprKind::kRepeat || expr.kind == ExprKind::kNot ||
      std::max<std::size_t>(loose.size(), depth) > kMaxLoosened)
    return made;
  for (ExprId& part : loose) {
    const Loosened inner = loosen(part, least, depth + 1);
    part = inner.id;
    made.bound = std::min(made.bound, inner.bound);
    made.has_conjunction |= inner.has_conjunction;
  }
  if (made.bound == kNoLimit) return made;
  if (expr.kind == ExprKind::kLexeme) made.id = lexeme(loose.front(), expr.b() != 0);
  if (expr.kind == ExprKind::kConcat) made.id = concat(loose);
  if (expr.kind == ExprKind::kAnyOf) made.id = any_of(std::move(loose));
  if (expr.kind == ExprKind::kAllOf) made.id = all_of(std::move(loose));
  return made;
}

ExprId Expressions::derivative(ExprId id, unsigned byte) {
  for (const Edge& edge : edges(id))
    if (edge.bytes[byte]) return edge.next;
  return kNothing;
}

ExprId Expressions::derivative(ExprId id, std::string_view text) {
  for (const char byte : text) id = derivative(id, static_cast<unsigned char>(byte));
  return id;
}

}  // namespace quire::grammar
