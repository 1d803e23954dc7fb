#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <bitset>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace quire::grammar {

using ByteSet = std::bitset<256>;

inline ByteSet byte_range(unsigned first, unsigned last) {
  ByteSet set;
  for (unsigned byte = first; byte <= last; ++byte) set.set(byte);
  return set;
}
inline ByteSet bytes_of(std::string_view bytes) {
  ByteSet set;
  for (const char byte : bytes) set.set(static_cast<unsigned char>(byte));
  return set;
}
inline ByteSet all_bytes() { return ~ByteSet(); }
inline std::array<std::uint64_t, 4> words_of(const ByteSet& set) {
  return std::bit_cast<std::array<std::uint64_t, 4>>(set);
}
template <typename F>
void for_each_byte(const ByteSet& set, F&& f) {
  unsigned first = 0;  // of a word
  for (std::uint64_t word : words_of(set)) {
    for (; word != 0; word &= word - 1) f(first + static_cast<unsigned>(std::countr_zero(word)));
    first += 64;
  }
}

using ExprId = std::uint32_t;
inline constexpr ExprId kNothing = 0;  // matches no text
inline constexpr ExprId kEmpty = 1;    // matches the empty text
inline constexpr ExprId kAnything = 2;
inline constexpr std::uint32_t kNoLimit = std::numeric_limits<std::uint32_t>::max();

enum class ExprKind : std::uint8_t {
  kDead,
  kEpsilon,
  kBytes,     // one byte of a set
  kConcat,    // a, then b
  kAnyOf,     // the children
  kAllOf,     // the children; regular
  kNot,       // all but a; regular
  kRepeat,    // a, b to c times
  kLexeme,    // a, regular. Says where masks are computed apart (automaton.h), unless b is 1
  kRule,      // the body of rule a
  kToken,     // the token a, which has no text
  kMembers,   // more members of an object (MemberList)
  kMultiple,  // digits, perhaps with a point, of a number that is a multiple of another (multiple())
};

using ExprHash = std::pair<std::uint64_t, std::uint64_t>;

struct Expr {
  ExprKind kind;
  bool nullable = false;                 // matches the empty text
  bool dead = false;                     // matches nothing
  bool regular = true;                   // holds no rule and no token
  std::array<std::uint32_t, 3> of = {};  // a, b, c; of kAnyOf and kAllOf: children_[a, a + b)
  ExprHash hash = {};                    // of its structure: one in all grammars, where regular

  std::uint32_t a() const { return of[0]; }
  std::uint32_t b() const { return of[1]; }
  std::uint32_t c() const { return of[2]; }
  // How many of its numbers are expressions: the first.
  std::size_t num_children() const {
    if (kind == ExprKind::kConcat) return 2;
    return kind == ExprKind::kNot || kind == ExprKind::kRepeat || kind == ExprKind::kLexeme ? 1 : 0;
  }
};

// What an expression becomes after one byte of a set.
struct Edge {
  ByteSet bytes;
  ExprId next;
};

// The members that an object may have. Its states are made as they are asked for: which of the members it
// has, and how many others.
struct MemberList {
  struct Member {
    ExprId text;  // name, colon and value
    bool required;
  };
  std::vector<Member> members;
  ExprId others = kNothing;  // members with any other name
  ExprId comma = kEmpty;
  bool any_order = false;  // else as listed, and then others
  // Bounds on the number of members. Others may all have one name, so that they count as one towards `min`.
  std::uint32_t min = 0, max = kNoLimit;
};

// An expression that is made once, and may be a part of itself: then it is a rule.
struct Recursive {
  ExprId expr = kNothing;
  std::optional<std::uint32_t> rule = std::nullopt;
  enum { kNew, kOpen, kDone } state = kNew;
};

// What expressions and their copies may take together. Exceeding it throws GrammarError.
struct MemoryBudget {
  std::atomic<std::size_t> bytes = 0;
  std::atomic<std::size_t> limit = std::numeric_limits<std::size_t>::max();
};

// A part of a budget, which is given back in the end. A copy takes as much again.
class MemoryShare {
 public:
  MemoryShare() = default;
  MemoryShare(const MemoryShare& other) : budget_(other.budget_) { take(other.bytes_); }
  MemoryShare(MemoryShare&& other) noexcept
      : budget_(other.budget_), bytes_(std::exchange(other.bytes_, 0)) {}
  MemoryShare& operator=(const MemoryShare&) = delete;
  ~MemoryShare() { give(bytes_); }

  void take(std::size_t bytes);  // nothing, where it throws
  void give(std::size_t bytes);
  std::size_t bytes() const { return bytes_; }
  MemoryBudget& budget() const { return *budget_; }

 private:
  std::shared_ptr<MemoryBudget> budget_ = std::make_shared<MemoryBudget>();
  std::size_t bytes_ = 0;
};

// Languages of bytes as expressions, each of which stands here once. The derivative of an expression by a
// byte is what must follow that byte; derivatives are expressions, too, so these are also the states of an
// automaton, made as they are asked for. With rules they are the configurations of a pushdown automaton: a
// state is what is left of the innermost rule, followed by what is left of those around it.
class Expressions {
 public:
  Expressions();

  ExprId bytes(const ByteSet& set);
  ExprId literal(std::string_view text);
  ExprId concat(ExprId a, ExprId b);
  ExprId concat(const std::vector<ExprId>& parts);
  ExprId any_of(std::vector<ExprId> parts);
  ExprId all_of(std::vector<ExprId> parts);  // of regular expressions
  ExprId complement(ExprId a);               // for all_of; of a regular expression
  ExprId repeat(ExprId a, std::uint32_t min = 0, std::uint32_t max = kNoLimit);
  // At least one item, with separators between them.
  ExprId separated(ExprId item, ExprId separator) { return concat(item, repeat(concat(separator, item))); }
  // Of a repetition: what is left after one.
  ExprId one_less(const Expr& of) {
    return repeat(of.a(), of.b() - (of.b() > 0), of.c() == kNoLimit ? kNoLimit : of.c() - 1);
  }
  ExprId optional(ExprId a) { return any_of({a, kEmpty}); }
  // What is not regular stays as it is: a rule's number and a token mean something in this grammar alone, and
  // the masks of lexemes are kept for all.
  ExprId lexeme(ExprId a, bool is_word = false);
  // A text with which many alternatives may begin, that are then looked at as one.
  ExprId word(std::string_view text) { return lexeme(literal(text), true); }
  ExprId token(int id);
  // Digits with at most one point, the number of which is a multiple of factor / 10^places.
  ExprId multiple(std::uint32_t factor, std::uint32_t places);
  // Any of the texts, which are sorted here.
  ExprId literals(std::vector<std::string_view> texts);

  // Members of an object: at least one, and whether there may be none, too.
  ExprId some_members(MemberList list, bool& may_be_empty);

  std::uint32_t new_rule();
  ExprId rule(std::uint32_t index) {
    return intern({.kind = ExprKind::kRule, .regular = false, .of = {index}});
  }
  void define(std::uint32_t index, ExprId body) { rules_[index] = body; }
  // What `make` makes of it, which may ask for it itself.
  template <typename F>
  ExprId recursive(Recursive& of, F&& make) {
    if (of.state == Recursive::kDone) return of.expr;
    if (of.state == Recursive::kOpen) {
      if (!of.rule) of.rule = new_rule();
      return rule(*of.rule);
    }
    of.state = Recursive::kOpen;
    of.expr = make();
    of.state = Recursive::kDone;
    if (of.rule) define(*of.rule, of.expr);
    if (of.rule && of.expr != kNothing) of.expr = rule(*of.rule);
    return of.expr;
  }
  // Of a rule, or of the members of an object: what it stands for.
  ExprId body(ExprId id);
  // Finds out which rules match the empty text and which match nothing. Before edges() of what has rules.
  // GrammarError where a rule begins with itself.
  void finish();

  const Expr& operator[](ExprId id) const { return exprs_[id]; }
  // What it is made of. Their numbers are lower. Valid as edges() is.
  std::span<const ExprId> children(ExprId id) const {
    const Expr& expr = exprs_[id];
    if (expr.kind == ExprKind::kAnyOf || expr.kind == ExprKind::kAllOf)
      return std::span(children_).subspan(expr.a(), expr.b());
    return std::span(expr.of).first(expr.num_children());
  }
  std::vector<ExprId> copied_children(ExprId id) const {
    const auto of = children(id);
    return {of.begin(), of.end()};
  }
  const ByteSet& byte_set(ExprId id) const { return sets_[exprs_[id].a()]; }
  bool nullable(ExprId id) const { return exprs_[id].nullable; }
  std::size_t size() const { return exprs_.size(); }
  // Whether any of them is this token.
  bool names_token(int id) const { return tokens_.contains(id); }

  // The derivatives that are not dead, of disjoint sets. Valid until the next call of anything that makes
  // expressions, unless copied.
  std::span<const Edge> edges(ExprId id);
  std::vector<Edge> copied_edges(ExprId id) {
    const auto of = edges(id);
    return {of.begin(), of.end()};
  }
  ExprId derivative(ExprId id, unsigned byte);
  ExprId derivative(ExprId id, std::string_view text);
  bool matches(ExprId id, std::string_view text) { return nullable(derivative(id, text)); }

  // An expression of another copy of what this was when its first `num_common` expressions were made.
  ExprId adopt(const Expressions& other, ExprId id, std::size_t num_common);

  MemoryShare& memory() { return memory_; }  // also of what is kept elsewhere for these expressions
  const MemoryShare& memory() const { return memory_; }

  // The same without upper bounds of at least `least` on repetitions. It holds every text of the expression,
  // and a text of at most `bound` bytes only if the expression does.
  struct Loosened {
    ExprId id;
    std::uint32_t bound = kNoLimit;
    bool has_conjunction = false;
  };
  Loosened loosen(ExprId id, std::uint32_t least, unsigned depth = 0);
  // Of what loosen() gave and its derivatives: bytes that lead its conjunctions to an end, at most.
  std::uint32_t distance(ExprId id);

  // What follows may take so much of this thread's processor time, counted from its first thousand steps
  // on; exceeding it throws GrammarError, and a stop that is asked for Stopped.
  void start_clock(std::chrono::nanoseconds limit, std::stop_token stop = {});
  std::chrono::nanoseconds time_taken() const;
  void step(std::size_t count = 1) {
    steps_ += count;
    if (steps_ >= kStepsBetweenChecks) check_time();
  }
  void check_time();

  // Held while something goes deeper into itself: GrammarError beyond a depth that a thread's stack bears.
  class Depth {
   public:
    explicit Depth(Expressions& expressions, unsigned weight = 1);
    Depth(const Depth&) = delete;
    Depth& operator=(const Depth&) = delete;
    ~Depth() { depth_ -= weight_; }

   private:
    unsigned& depth_;
    const unsigned weight_;
  };

 private:
  static constexpr std::size_t kStepsBetweenChecks = 1024;

  struct EdgeRange {
    std::uint32_t first = 0, size = 0;
    bool known = false, open = false;  // of a rule: in the making
  };

  // listed: the children of kAnyOf and kAllOf.
  ExprId intern(Expr expr, std::span<const ExprId> listed = {}, const ByteSet* set = nullptr);
  void set_flags(Expr& expr, std::span<const ExprId> children) const;
  void grow_table();
  bool dead(ExprId id);
  // Whether a conjunction or a complement matches anything.
  bool matches_something(ExprId id);
  ExprId raw_all_of(std::vector<ExprId> parts);
  std::vector<Edge> compute_edges(ExprId id);
  std::vector<Edge> edges_of_concat(ExprId a, ExprId b, bool with_b);
  std::vector<Edge> edges_of_parts(ExprId id);  // of kAnyOf, kAllOf, kNot
  std::vector<Edge> edges_of_multiple(const Expr& expr);
  const std::vector<Edge>& raw_edges(ExprId id);
  // members.cpp: by the list, which of its members there are (a number of seen_), and how many others.
  ExprId members(std::uint32_t list, std::uint32_t seen, std::uint32_t others);
  ExprId more_members(const Expr& expr);
  void set_member_flags(Expr& expr) const;
  std::uint32_t seen_number(std::vector<bool> seen);
  // Splits the bytes by what the lists lead to, and joins that: any of it, or all.
  std::vector<Edge> merge(std::span<const std::vector<Edge>> lists, ExprKind kind);
  ExprId literals(std::span<const std::string_view> texts, std::size_t from);

  MemoryShare memory_;  // the first, so that a copy that finds no room costs nothing
  std::vector<Expr> exprs_;
  std::vector<ExprId> children_;
  std::vector<ByteSet> sets_;
  std::vector<std::uint64_t> table_;  // open addressing by hash; 0: free
  std::vector<ExprId> rules_;
  std::unordered_set<int> tokens_;
  std::vector<std::shared_ptr<const MemberList>> lists_;
  std::vector<std::vector<bool>> seen_;
  std::unordered_map<std::vector<bool>, std::uint32_t> seen_index_;
  std::unordered_map<ExprId, ExprId> member_bodies_;
  std::vector<EdgeRange> ranges_;
  std::vector<Edge> edges_;
  std::unordered_map<ExprId, std::vector<Edge>> raw_edges_;  // of conjunctions, dead ones included
  std::unordered_map<ExprId, std::uint32_t> distances_;  // what matches_something found out; kNoLimit: dead
  std::chrono::nanoseconds time_limit_ = std::chrono::nanoseconds::max(), clock_start_{-1};
  std::stop_token stop_;
  std::size_t steps_ = 0;
  unsigned depth_ = 0;
};

}  // namespace quire::grammar
