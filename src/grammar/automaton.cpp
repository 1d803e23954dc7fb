#include "grammar/automaton.h"

#include <algorithm>
#include <bit>

#include "grammar/utf8.h"

namespace quire::grammar {
namespace {

constexpr std::size_t kMaxEnds = 16384;
constexpr std::size_t kMaxPlainStates = 500;  // beyond which walking all tokens takes less time
constexpr std::uint32_t kFewChildren = 4;     // for which no table is made

}  // namespace

Automaton::Automaton(Expressions expressions, ExprId root, std::shared_ptr<const Vocabulary> vocabulary,
                     const Limits& limits)
    : expressions_(std::move(expressions)), root_(root), vocabulary_(std::move(vocabulary)), limits_(limits) {
  const CharacterSet special = {{0, 0x1F}, {'"', '"'}, {'\\', '\\'}, {0x7F, 0x7F}};
  plain_ = expressions_.repeat(utf8_character(expressions_, special.complement()), 0, kNoLimit);
}

Automaton::Automaton(const Automaton& other)
    : expressions_(other.expressions_),
      root_(other.root_),
      plain_(other.plain_),
      vocabulary_(other.vocabulary_),
      limits_(other.limits_) {}

void Automaton::start_budget() {
  expressions_.budget() = {std::chrono::steady_clock::now() + limits_.mask_time, limits_.memory_bytes, {}};
}

std::size_t Automaton::memory_bytes() const {
  const std::scoped_lock lock(mutex_);
  return expressions_.memory() + mask_bytes_;
}

bool Automaton::complete(ExprId state) const {
  const std::scoped_lock lock(mutex_);
  return expressions_.nullable(state);
}

ExprId Automaton::advance(ExprId state, int token) {
  const std::scoped_lock lock(mutex_);
  start_budget();
  const TokenText& text = vocabulary_->token(token);
  const ExprId named = expressions_.has_tokens() ? expressions_.derivative_by_token(state, token) : kNothing;
  if (text.special || text.bytes.empty()) return named;
  for (const char byte : text.bytes) {
    state = expressions_.derivative(state, static_cast<unsigned char>(byte));
    if (state == kNothing) break;
  }
  return named == kNothing ? state : expressions_.any_of({state, named});
}

const Automaton::Table* Automaton::table(ExprId state, bool make) {
  if (table_of_.size() <= state)
    table_of_.resize(std::max<std::size_t>(expressions_.size(), state + 1), nullptr);
  if (table_of_[state] != nullptr || !make) return table_of_[state];
  const auto edges = expressions_.edges(state);
  expressions_.add_memory(sizeof(Table));
  Table& made = tables_.emplace_back();
  made.fill(kNothing);
  for (const Edge& edge : edges) edge.bytes.for_each([&](unsigned byte) { made[byte] = edge.next; });
  return table_of_[state] = &made;
}

void Automaton::add(int token) {
  const TokenTrie& trie = vocabulary_->trie();
  for (; token >= 0; token = trie.next_equal(token)) found_.push_back(static_cast<std::uint32_t>(token));
}

void Automaton::walk(ExprId state, std::uint32_t node, std::vector<std::uint32_t>* ends) {
  const TokenTrie& trie = vocabulary_->trie();
  const std::uint32_t first = trie.first_child(node), end = trie.end_child(node);
  const Table* const derivatives = table(state, end - first > kFewChildren);
  for (std::uint32_t child = first; child < end; ++child) {
    const ExprId after = next(state, derivatives, trie.byte(child));
    if (after == kNothing) continue;
    if (trie.token(child) >= 0) add(trie.token(child));
    if (trie.first_child(child) == trie.end_child(child)) continue;
    if (ends != nullptr && expressions_.nullable(after)) ends->push_back(child);
    walk(after, child, ends);
  }
}

void Automaton::split(ExprId state) {
  if (state == kNothing || !split_seen_.insert(state).second) return;
  const Expr expr = expressions_[state];
  const bool is_concat = expr.kind == ExprKind::kConcat;
  const ExprId first = is_concat ? expr.a : state, tail = is_concat ? expr.b : kEmpty;
  const Expr head = expressions_[first];
  const auto with = [&](ExprId other) { split(expressions_.concat(other, tail)); };
  if (head.kind == ExprKind::kConcat) return with(first);
  if (head.kind == ExprKind::kRule || head.kind == ExprKind::kMembers) return with(expressions_.body(first));
  if (head.kind == ExprKind::kAnyOf && (!is_concat || !head.regular)) {
    const auto parts = expressions_.children(first);
    for (const ExprId part : std::vector<ExprId>(parts.begin(), parts.end())) with(part);
    return;
  }
  if (head.kind == ExprKind::kLexeme) {
    split_lexemes_.emplace_back(head.a, tail);
  } else if (head.kind == ExprKind::kToken) {
    found_.push_back(head.a);
  } else if (head.kind == ExprKind::kRepeat && !head.regular) {
    with(expressions_.concat(head.a, expressions_.repeat(head.a, head.b - (head.b > 0),
                                                         head.c == kNoLimit ? kNoLimit : head.c - 1)));
  } else {
    split_states_.push_back(state);
  }
  if (head.nullable) split(tail);
}

bool Automaton::takes_plain_text(ExprId plain, ExprId state, unsigned bytes,
                                 std::vector<std::uint64_t>& assumed) {
  if (bytes == 0) return true;
  if (assumed.size() > kMaxPlainStates) return false;
  unsigned& known = plain_bytes_[std::uint64_t{plain} << 32 | state];
  if (known >= bytes) return true;
  known = bytes;  // so that a circle comes to an end
  assumed.push_back(std::uint64_t{plain} << 32 | state);
  const auto of_plain = expressions_.edges(plain);
  const std::vector<Edge> from(of_plain.begin(), of_plain.end());
  const auto of_state = expressions_.edges(state);
  const std::vector<Edge> to(of_state.begin(), of_state.end());
  for (const Edge& a : from) {
    ByteSet missing = a.bytes;
    for (const Edge& b : to) {
      if ((a.bytes & b.bytes).empty()) continue;
      missing = missing & ~b.bytes;
      if (!takes_plain_text(a.next, b.next, bytes - 1, assumed)) return false;
    }
    if (!missing.empty()) return false;
  }
  return true;
}

// Whether every text of so many bytes that is plain, or the beginning of one, leaves it alive.
bool Automaton::takes_plain_text(ExprId state) {
  if (not_plain_.contains(state)) return false;
  std::vector<std::uint64_t> assumed;
  const auto forget = [&] {
    for (const std::uint64_t key : assumed) plain_bytes_.erase(key);
  };
  try {
    if (takes_plain_text(plain_, state, TokenTrie::kPlainBytes, assumed)) return true;
  } catch (...) {
    forget();
    throw;
  }
  forget();
  not_plain_.insert(state);
  return false;
}

TokenSet Automaton::take_found(bool sorted_unique) {
  TokenSet set;
  if (found_.size() <= vocabulary_->mask_words() / 2) {
    set.ids = found_;
    if (sorted_unique) {
      std::ranges::sort(set.ids);
      set.ids.erase(std::unique(set.ids.begin(), set.ids.end()), set.ids.end());
    }
  } else {
    set.words.resize(vocabulary_->mask_words(), 0);
    for (const std::uint32_t id : found_) set.words[id / 32] |= 1u << id % 32;
  }
  found_.clear();
  return set;
}

std::shared_ptr<const LexemeTokens> Automaton::lexeme_tokens(ExprId lexeme) {
  const Expr& expr = expressions_[lexeme];
  const LexemeCache::Key key = {expr.hash, expr.hash2};
  if (auto known = vocabulary_->lexemes().find(key)) return known;
  auto made = std::make_shared<LexemeTokens>();
  std::vector<std::uint32_t> outer;
  std::swap(outer, found_);
  walk(lexeme, TokenTrie::kRest, &made->ends);
  // Plain text ends no JSON string, so that where all of it is taken, none need be walked.
  const bool all_plain = takes_plain_text(lexeme);
  if (!all_plain) walk(lexeme, TokenTrie::kPlain, &made->ends);
  if (all_plain) {
    made->inside.words.assign(vocabulary_->trie().plain_tokens().begin(),
                              vocabulary_->trie().plain_tokens().end());
    for (const std::uint32_t id : found_) made->inside.words[id / 32] |= 1u << id % 32;
  } else {
    made->inside = take_found(false);
  }
  std::swap(outer, found_);
  if (made->ends.size() > kMaxEnds) {
    made->too_many_ends = true;
    made->ends = {};
  }
  vocabulary_->lexemes().add(key, made);
  return made;
}

std::shared_ptr<const Automaton::Mask> Automaton::mask(ExprId state) {
  const std::scoped_lock lock(mutex_);
  const auto known = masks_.find(state);
  if (known != masks_.end()) return known->second;
  start_budget();
  found_.clear();
  split_lexemes_.clear();
  split_states_.clear();
  split_seen_.clear();
  split(state);
  std::vector<std::shared_ptr<const LexemeTokens>> whole;
  for (const auto& [lexeme, tail] : split_lexemes_) {
    auto tokens = lexeme_tokens(lexeme);
    if (tokens->too_many_ends) {
      split_states_.push_back(expressions_.concat(lexeme, tail));
      continue;
    }
    if (tail != kEmpty)
      for (const std::uint32_t node : tokens->ends) walk(tail, node, nullptr);
    whole.push_back(std::move(tokens));
  }
  if (!split_states_.empty()) {
    const ExprId others = expressions_.any_of(split_states_);
    walk(others, TokenTrie::kPlain, nullptr);
    walk(others, TokenTrie::kRest, nullptr);
  }
  if (expressions_.nullable(state))
    for (const int id : vocabulary_->end_ids()) found_.push_back(static_cast<std::uint32_t>(id));
  bool few = true;
  for (const auto& tokens : whole) {
    found_.insert(found_.end(), tokens->inside.ids.begin(), tokens->inside.ids.end());
    few = few && tokens->inside.words.empty();
  }
  auto made = std::make_shared<Mask>();
  made->tokens = take_found(true);
  if (!few) {
    made->tokens.words.resize(vocabulary_->mask_words(), 0);
    for (const auto& tokens : whole)
      if (!tokens->inside.words.empty()) tokens->inside.add_to(made->tokens.words);
    TokenSet{std::exchange(made->tokens.ids, {}), {}}.add_to(made->tokens.words);
  }
  if (made->tokens.words.empty() && made->tokens.ids.size() == 1)
    made->forced = static_cast<int>(made->tokens.ids.front());
  mask_bytes_ += made->tokens.bytes();
  if (mask_bytes_ > limits_.memory_bytes / 4) {
    masks_.clear();
    mask_bytes_ = made->tokens.bytes();
  }
  masks_.emplace(state, made);
  return made;
}

}  // namespace quire::grammar
