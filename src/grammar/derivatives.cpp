// Derivatives of expressions by bytes.
#include <algorithm>
#include <array>
#include <utility>

#include "grammar/expressions.h"
#include "grammar/grammar.h"

namespace quire::grammar {
namespace {

constexpr unsigned kMaxDepth = 2000;           // of expressions in one another
constexpr std::size_t kMaxExplored = 200'000;  // states of one conjunction
constexpr std::uint32_t kInFraction = 1;       // of Expr::c of kMultiple; above it the places left

class DepthGuard {
 public:
  explicit DepthGuard(unsigned& depth) : depth_(depth) {
    if (++depth_ > kMaxDepth) {
      --depth_;
      throw GrammarError(format_text("the grammar is nested deeper than {} levels", kMaxDepth));
    }
  }
  DepthGuard(const DepthGuard&) = delete;
  DepthGuard& operator=(const DepthGuard&) = delete;
  ~DepthGuard() { --depth_; }

 private:
  unsigned& depth_;
};

}  // namespace

template <typename Join>
std::vector<Edge> Expressions::merge(std::span<const std::vector<Edge>> lists, Join&& join) {
  // A class of bytes leads to the same in all lists seen; it knows the class that it was a part of.
  struct Class {
    std::uint32_t parent, depth;
    ExprId next;
  };
  std::vector<Class> classes = {{0, 0, kNothing}};
  std::array<std::uint32_t, 256> class_of{};
  std::vector<std::pair<std::uint32_t, std::uint32_t>>
      renamed;  // by old class: the edge it was for, the new class
  std::uint32_t edge_number = 0;
  for (const auto& list : lists) {
    for (const Edge& edge : list) {
      ++edge_number;
      edge.bytes.for_each([&](unsigned byte) {
        const std::uint32_t old = class_of[byte];
        if (renamed.size() < classes.size()) renamed.resize(classes.size() + 64);
        if (renamed[old].first != edge_number) {
          renamed[old] = {edge_number, static_cast<std::uint32_t>(classes.size())};
          classes.push_back({old, classes[old].depth + 1, edge.next});
        }
        class_of[byte] = renamed[old].second;
      });
    }
  }
  std::vector<std::pair<std::uint32_t, ByteSet>> sets;
  std::vector<std::uint32_t> set_of(classes.size(), 0);
  for (unsigned byte = 0; byte < 256; ++byte) {
    const std::uint32_t id = class_of[byte];
    if (id == 0) continue;
    if (set_of[id] == 0) {
      sets.emplace_back(id, ByteSet{});
      set_of[id] = static_cast<std::uint32_t>(sets.size());
    }
    sets[set_of[id] - 1].second.add(byte);
  }
  std::vector<Edge> result;
  std::unordered_map<ExprId, std::size_t> by_next;
  for (const auto& [id, bytes] : sets) {
    std::vector<ExprId> targets;
    for (std::uint32_t at = id; at != 0; at = classes[at].parent) targets.push_back(classes[at].next);
    const ExprId next = join(std::move(targets));
    if (next == kNothing) continue;
    const auto [found, is_new] = by_next.try_emplace(next, result.size());
    if (is_new)
      result.push_back({bytes, next});
    else
      result[found->second].bytes = result[found->second].bytes | bytes;
  }
  return result;
}

std::vector<Edge> Expressions::edges_of_concat(ExprId a, ExprId b, bool with_b) {
  std::vector<Edge> first;
  {
    const auto of_a = edges(a);
    first.assign(of_a.begin(), of_a.end());
  }
  for (Edge& edge : first) edge.next = concat(edge.next, b);
  std::erase_if(first, [](const Edge& edge) { return edge.next == kNothing; });
  if (!with_b) return first;
  const auto of_b = edges(b);
  if (of_b.empty()) return first;
  const std::array<std::vector<Edge>, 2> lists = {std::move(first), {of_b.begin(), of_b.end()}};
  return merge(lists, [&](std::vector<ExprId> targets) { return any_of(std::move(targets)); });
}

std::vector<Edge> Expressions::edges_of_parts(ExprId id) {
  const ExprKind kind = exprs_[id].kind;
  std::vector<ExprId> parts = {exprs_[id].a};
  if (kind != ExprKind::kNot) {
    const auto all = children(id);
    parts.assign(all.begin(), all.end());
  }
  std::vector<std::vector<Edge>> lists;
  for (const ExprId part : parts) {
    // A complement's own complement may be dead, which only the whole of a conjunction shows.
    const bool raw = kind == ExprKind::kAllOf && exprs_[part].kind == ExprKind::kNot;
    const auto of_part = raw ? std::span<const Edge>(raw_edges(part)) : edges(part);
    lists.emplace_back(of_part.begin(), of_part.end());
  }
  if (kind == ExprKind::kAnyOf)
    return merge(lists, [&](std::vector<ExprId> targets) { return any_of(std::move(targets)); });
  if (kind == ExprKind::kAllOf)
    return merge(lists, [&](std::vector<ExprId> targets) {
      return targets.size() == lists.size() ? raw_all_of(std::move(targets)) : kNothing;
    });
  ByteSet others = ByteSet::all();
  std::vector<Edge> result;
  for (const Edge& edge : lists.front()) {
    others = others & ~edge.bytes;
    const ExprId next = complement(edge.next);
    if (next != kNothing) result.push_back({edge.bytes, next});
  }
  if (!others.empty()) result.push_back({others, kAnything});
  return result;
}

std::vector<Edge> Expressions::edges_of_multiple(const Expr& expr) {
  const std::uint32_t left = expr.c >> 1;
  const bool in_fraction = (expr.c & kInFraction) != 0;
  const auto state = [&](std::uint64_t remainder, std::uint32_t c) {
    std::uint64_t whole = remainder;
    for (std::uint32_t i = 0; i < c >> 1; ++i) whole = whole * 10 % expr.a;
    return intern({.kind = ExprKind::kMultiple,
                   .nullable = whole == 0,
                   .a = expr.a,
                   .b = static_cast<std::uint32_t>(remainder),
                   .c = c});
  };
  std::vector<Edge> result;
  if (in_fraction && left == 0) {
    if (expr.nullable) result.push_back({ByteSet::of("0"), state(expr.b, expr.c)});
    return result;
  }
  std::unordered_map<ExprId, ByteSet> by_next;
  for (unsigned digit = 0; digit < 10; ++digit)
    by_next[state((expr.b * std::uint64_t{10} + digit) % expr.a, in_fraction ? expr.c - 2 : expr.c)].add(
        '0' + digit);
  for (const auto& [next, bytes] : by_next) result.push_back({bytes, next});
  if (!in_fraction) result.push_back({ByteSet::of("."), state(expr.b, expr.c | kInFraction)});
  return result;
}

std::vector<Edge> Expressions::compute_edges(ExprId id) {
  const Expr expr = exprs_[id];
  if (expr.dead) return {};
  switch (expr.kind) {
    case ExprKind::kBytes:
      return {{byte_set(id), kEmpty}};
    case ExprKind::kConcat:
      return edges_of_concat(expr.a, expr.b, nullable(expr.a));
    case ExprKind::kRepeat:
      return edges_of_concat(
          expr.a, repeat(expr.a, expr.b - (expr.b > 0), expr.c == kNoLimit ? kNoLimit : expr.c - 1), false);
    case ExprKind::kAnyOf:
      return edges_of_parts(id);
    case ExprKind::kAllOf:
    case ExprKind::kNot: {
      std::vector<Edge> result = raw_edges(id);
      std::erase_if(result, [&](const Edge& edge) { return dead(edge.next); });
      return result;
    }
    case ExprKind::kLexeme: {
      const auto inner = edges(expr.a);
      std::vector<Edge> result(inner.begin(), inner.end());
      for (Edge& edge : result) edge.next = lexeme(edge.next);
      return result;
    }
    case ExprKind::kRule:
    case ExprKind::kMembers: {
      const auto of_body = edges(body(id));
      return {of_body.begin(), of_body.end()};
    }
    case ExprKind::kMultiple:
      return edges_of_multiple(expr);
    default:
      return {};
  }
}

std::span<const Edge> Expressions::edges(ExprId id) {
  if (!ranges_[id].known) {
    if (ranges_[id].open)
      throw GrammarError(
          "a rule begins with itself (left recursion), perhaps by way of others; repetition would do");
    const DepthGuard guard(depth_);
    ranges_[id].open = true;
    std::vector<Edge> computed;
    try {
      computed = compute_edges(id);
      add_memory(computed.size() * sizeof(Edge));
    } catch (...) {
      ranges_[id].open = false;
      throw;
    }
    ranges_[id] = {static_cast<std::uint32_t>(edges_.size()), static_cast<std::uint32_t>(computed.size()),
                   true, false};
    edges_.insert(edges_.end(), computed.begin(), computed.end());
  }
  return std::span(edges_).subspan(ranges_[id].first, ranges_[id].size);
}

const std::vector<Edge>& Expressions::raw_edges(ExprId id) {
  const auto found = raw_edges_.find(id);
  if (found != raw_edges_.end()) return found->second;
  std::vector<Edge> computed = edges_of_parts(id);
  add_memory(computed.size() * sizeof(Edge) + 64);
  return raw_edges_.emplace(id, std::move(computed)).first->second;
}

bool Expressions::matches_something(ExprId id) {
  if (id == kAnything) return true;
  struct Visit {
    ExprId id;
    std::size_t next = 0;
  };
  std::vector<Visit> path;
  std::vector<ExprId> visited;
  // Whether a state is known to match something; opens it, if nothing is known of it.
  const auto visit = [&](ExprId at) {
    const ExprKind kind = exprs_[at].kind;
    if (kind != ExprKind::kAllOf && kind != ExprKind::kNot) return !exprs_[at].dead;
    const auto [found, is_new] = something_.try_emplace(at, exprs_[at].nullable || at == kAnything);
    if (!is_new || found->second) return found->second;
    path.push_back({at});
    visited.push_back(at);
    if (visited.size() > kMaxExplored)
      throw GrammarError("two of the grammar's conditions take too long to combine");
    return false;
  };
  bool found = false;
  try {
    found = visit(id);
    while (!found && !path.empty()) {
      const std::vector<Edge>& next = raw_edges(path.back().id);
      if (path.back().next == next.size())
        path.pop_back();
      else
        found = visit(next[path.back().next++].next);
    }
  } catch (...) {
    for (const ExprId at : visited) something_.erase(at);
    throw;
  }
  if (found) {
    // What was left on the way may yet lead somewhere.
    for (const ExprId at : visited) something_.erase(at);
    for (const Visit& at : path) something_[at.id] = true;
    something_[id] = true;
  }
  return found;
}

ExprId Expressions::derivative(ExprId id, unsigned byte) {
  for (const Edge& edge : edges(id))
    if (edge.bytes.has(byte)) return edge.next;
  return kNothing;
}

ExprId Expressions::derivative_by_token(ExprId id, int token) {
  const DepthGuard guard(depth_);
  const Expr expr = exprs_[id];
  if (expr.regular) return kNothing;
  switch (expr.kind) {
    case ExprKind::kToken:
      return expr.a == static_cast<std::uint32_t>(token) ? kEmpty : kNothing;
    case ExprKind::kConcat: {
      const ExprId first = concat(derivative_by_token(expr.a, token), expr.b);
      return nullable(expr.a) ? any_of({first, derivative_by_token(expr.b, token)}) : first;
    }
    case ExprKind::kRepeat:
      return concat(derivative_by_token(expr.a, token),
                    repeat(expr.a, expr.b - (expr.b > 0), expr.c == kNoLimit ? kNoLimit : expr.c - 1));
    case ExprKind::kAnyOf: {
      const auto parts = children(id);
      std::vector<ExprId> next(parts.begin(), parts.end());
      for (ExprId& part : next) part = derivative_by_token(part, token);
      return any_of(std::move(next));
    }
    case ExprKind::kRule:
    case ExprKind::kMembers:
      return derivative_by_token(body(id), token);
    default:
      return kNothing;
  }
}

bool Expressions::matches(ExprId id, std::string_view text) {
  for (const char byte : text) id = derivative(id, static_cast<unsigned char>(byte));
  return nullable(id);
}

}  // namespace quire::grammar
