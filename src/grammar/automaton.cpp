#include "grammar/automaton.h"

#include <algorithm>

namespace quire::grammar {
namespace {

constexpr std::size_t kMaxEnds = 16384;
constexpr std::size_t kMaxPlainPairs = 500;  // beyond which walking all tokens takes less time
constexpr std::uint32_t kCounterSlack = 8;   // beyond the longest token, to complete what it begins
constexpr std::uint32_t kFewChildren = 4;    // for which no table is made
constexpr std::size_t kMasksPart = 8;        // of the memory, for masks
constexpr std::size_t kFullPart = 3;         // of the memory, beyond which a fresh copy takes over
constexpr std::size_t kBytesOfEntry = 64;    // of an entry of masks_ or plain_pairs_

}  // namespace

Automaton::Automaton(const CompiledSource& source, std::shared_ptr<const Vocabulary> vocabulary)
    : expressions_(source.expressions),
      root_(source.root),
      plain_(source.plain),
      vocabulary_(std::move(vocabulary)),
      limits_(source.limits),
      num_common_(expressions_.size()) {}

template <typename F>
auto Automaton::within_limits(std::chrono::nanoseconds& allowance, F&& compute) {
  if (allowance.count() <= 0)
    throw LimitError(
        "the masks of one output took longer in all than their limit; a simpler grammar would do");
  expressions_.start_clock(std::min<std::chrono::nanoseconds>(limits_.mask_time, allowance));
  try {
    const auto result = compute();
    allowance -= expressions_.time_taken();
    is_full_ = expressions_.memory().bytes() > limits_.memory_bytes / kFullPart;
    return result;
  } catch (...) {
    allowance -= expressions_.time_taken();
    throw;
  }
}

ExprId Automaton::adopt(Automaton& other, ExprId state) {
  const std::scoped_lock lock(mutex_, other.mutex_);
  expressions_.start_clock(limits_.mask_time);
  return expressions_.adopt(other.expressions_, state, num_common_);
}

bool Automaton::complete(ExprId state) const {
  const std::scoped_lock lock(mutex_);
  return expressions_.nullable(state);
}

ExprId Automaton::advance(ExprId state, int token, std::chrono::nanoseconds& allowance) {
  const std::scoped_lock lock(mutex_);
  return within_limits(allowance, [&] {
    const TokenText& text = vocabulary_->token(token);
    const bool is_text = !text.special && !text.bytes.empty();
    const ExprId next = is_text ? expressions_.derivative(state, text.bytes) : kNothing;
    if (!expressions_.names_token(token)) return next;
    split(state);
    std::vector<ExprId> all = {next};
    for (const auto& [id, tail] : split_tokens_)
      if (id == static_cast<std::uint32_t>(token)) all.push_back(tail);
    return expressions_.any_of(std::move(all));
  });
}

const Automaton::Table* Automaton::table(ExprId state, bool make) {
  if (table_of_.size() <= state)
    table_of_.resize(std::max<std::size_t>(expressions_.size(), state + 1), nullptr);
  if (table_of_[state] != nullptr || !make) return table_of_[state];
  const auto edges = expressions_.edges(state);
  expressions_.memory().take(sizeof(Table));
  Table& made = tables_.emplace_back();
  made.fill(kNothing);
  for (const Edge& edge : edges) for_each_byte(edge.bytes, [&](unsigned byte) { made[byte] = edge.next; });
  return table_of_[state] = &made;
}

void Automaton::walk(ExprId state, std::uint32_t node, LexemeTokens* lexeme, unsigned depth) {
  const TokenTrie& trie = vocabulary_->trie();
  const std::uint32_t first = trie.first_child(node), end = trie.end_child(node);
  const Table* const derivatives = table(state, end - first > kFewChildren);
  for (std::uint32_t child = first; child < end; ++child) {
    const std::uint8_t byte = trie.byte(child);
    const ExprId after = derivatives != nullptr ? (*derivatives)[byte] : expressions_.derivative(state, byte);
    expressions_.step();
    if (after == kNothing) continue;
    for (int token = trie.token(child); token >= 0; token = trie.next_equal(token))
      found_.push_back(static_cast<std::uint32_t>(token));
    if (lexeme != nullptr && lexeme->with_reach)
      lexeme->reach =
          std::max<std::uint64_t>(lexeme->reach, depth + std::uint64_t{1} + expressions_.distance(after));
    if (trie.first_child(child) == trie.end_child(child)) continue;
    if (lexeme != nullptr && expressions_.nullable(after)) lexeme->ends.push_back(child);
    walk(after, child, lexeme, depth + 1);
  }
}

void Automaton::split(ExprId whole) {
  split_lexemes_.clear();
  split_tokens_.clear();
  split_states_.clear();
  std::vector<ExprId> open = {whole};
  std::unordered_set<ExprId> seen;
  while (!open.empty()) {
    const ExprId state = open.back();
    open.pop_back();
    if (state == kNothing || !seen.insert(state).second) continue;
    const Expr expr = expressions_[state];
    const bool is_concat = expr.kind == ExprKind::kConcat;
    const ExprId first = is_concat ? expr.a() : state, tail = is_concat ? expr.b() : kEmpty;
    const Expr head = expressions_[first];
    const auto with = [&](ExprId other) { open.push_back(expressions_.concat(other, tail)); };
    if (head.kind == ExprKind::kConcat) {
      with(first);
    } else if (head.kind == ExprKind::kRule || head.kind == ExprKind::kMembers) {
      with(expressions_.body(first));
    } else if (head.kind == ExprKind::kAnyOf && (!is_concat || !head.regular)) {
      for (const ExprId part : expressions_.copied_children(first)) with(part);
    } else {
      if (head.kind == ExprKind::kLexeme && head.b() == 0)
        split_lexemes_.emplace_back(head.a(), tail);
      else if (head.kind == ExprKind::kToken)
        split_tokens_.emplace_back(head.a(), tail);
      else if (head.kind == ExprKind::kRepeat && !head.regular)
        with(expressions_.concat(head.a(), expressions_.one_less(head)));
      else
        split_states_.push_back(state);
      if (head.nullable) open.push_back(tail);
    }
  }
}

// Whether no plain text leads out of it.
bool Automaton::takes_plain_text(ExprId state) {
  if (not_plain_.contains(state)) return false;
  std::set<std::pair<ExprId, ExprId>> pairs = {{plain_, state}};
  std::vector<std::pair<ExprId, ExprId>> open = {{plain_, state}};
  while (!open.empty()) {
    const auto [plain, other] = open.back();
    open.pop_back();
    if (plain_pairs_.contains({plain, other})) continue;
    const std::vector<Edge> of_other = expressions_.copied_edges(other);
    for (const Edge& from : expressions_.copied_edges(plain)) {
      ByteSet missing = from.bytes;
      for (const Edge& to : of_other) {
        if ((from.bytes & to.bytes).none()) continue;
        missing = missing & ~to.bytes;
        if (pairs.emplace(from.next, to.next).second) open.emplace_back(from.next, to.next);
      }
      if (missing.any() || pairs.size() > kMaxPlainPairs) {
        not_plain_.insert(state);
        return false;
      }
    }
  }
  expressions_.memory().take(pairs.size() * kBytesOfEntry);
  plain_pairs_.merge(pairs);  // leaves those that it had
  expressions_.memory().give(pairs.size() * kBytesOfEntry);
  return true;
}

TokenSet Automaton::take_found(bool as_words) {
  TokenSet set;
  if (as_words || found_.size() > vocabulary_->mask_words() / 2) {
    set.words.resize(vocabulary_->mask_words(), 0);
    for (const std::uint32_t id : found_) set.words[id / 32] |= 1u << id % 32;
  } else {
    set.ids = found_;
    std::ranges::sort(set.ids);
    set.ids.erase(std::unique(set.ids.begin(), set.ids.end()), set.ids.end());
  }
  found_.clear();
  return set;
}

// While many repetitions are left, it does not matter how many: the states of a counter have one mask.
std::shared_ptr<const LexemeTokens> Automaton::lexeme_tokens(ExprId lexeme, std::uint32_t root) {
  const std::uint32_t longest = vocabulary_->trie().longest(root);
  const Expressions::Loosened loose = expressions_.loosen(lexeme, longest + kCounterSlack);
  if (loose.bound != kNoLimit) {
    auto tokens = tokens_within(loose.id, root, loose.has_conjunction);
    if (!loose.has_conjunction || tokens->reach <= loose.bound) return tokens;
  }
  return tokens_within(lexeme, root, false);
}

std::shared_ptr<const LexemeTokens> Automaton::tokens_within(ExprId lexeme, std::uint32_t root,
                                                             bool with_reach) {
  const Expr& expr = expressions_[lexeme];
  const LexemeCache::Key key = {expr.hash.first, expr.hash.second + 2 * root + with_reach};
  if (auto known = vocabulary_->lexemes().find(key)) return known;
  auto made = std::make_shared<LexemeTokens>();
  made->with_reach = with_reach;
  std::vector<std::uint32_t> outer;
  std::swap(outer, found_);
  // Plain text ends no JSON string, so that where all of it is taken, none need be walked.
  if (root == TokenTrie::kPlain && !with_reach && takes_plain_text(lexeme)) {
    made->inside.words.assign(vocabulary_->trie().plain_tokens().begin(),
                              vocabulary_->trie().plain_tokens().end());
  } else {
    walk(lexeme, root, made.get());
    made->inside = take_found();
  }
  std::swap(outer, found_);
  if (made->ends.size() > kMaxEnds) {
    made->too_many_ends = true;
    made->ends = {};
  }
  vocabulary_->lexemes().add(key, made);
  return made;
}

std::shared_ptr<const TokenSet> Automaton::mask(ExprId state, std::chrono::nanoseconds& allowance) {
  const std::scoped_lock lock(mutex_);
  const auto known = masks_.find(state);
  if (known != masks_.end()) return known->second;
  return within_limits(allowance, [&] { return make_mask(state); });
}

std::shared_ptr<const TokenSet> Automaton::make_mask(ExprId state) {
  found_.clear();
  split(state);
  for (const auto& [id, tail] : split_tokens_) found_.push_back(id);
  std::vector<std::shared_ptr<const LexemeTokens>> whole;
  for (const std::uint32_t root : {TokenTrie::kPlain, TokenTrie::kRest}) {
    std::vector<ExprId> others = split_states_;
    for (const auto& [lexeme, tail] : split_lexemes_) {
      auto tokens = lexeme_tokens(lexeme, root);
      if (tokens->too_many_ends) {
        others.push_back(expressions_.concat(lexeme, tail));
        continue;
      }
      if (tail != kEmpty)
        for (const std::uint32_t node : tokens->ends) walk(tail, node);
      whole.push_back(std::move(tokens));
    }
    if (!others.empty()) walk(expressions_.any_of(std::move(others)), root);
  }
  if (expressions_.nullable(state))
    for (const int id : vocabulary_->end_ids()) found_.push_back(static_cast<std::uint32_t>(id));
  bool as_words = false;
  for (const auto& tokens : whole) {
    found_.insert(found_.end(), tokens->inside.ids.begin(), tokens->inside.ids.end());
    as_words |= !tokens->inside.words.empty();
  }
  auto made = std::make_shared<TokenSet>(take_found(as_words));
  if (as_words)
    for (const auto& tokens : whole) tokens->inside.add_to(made->words);
  const std::size_t bytes = made->bytes() + kBytesOfEntry;
  if (mask_bytes_ + bytes > limits_.memory_bytes / kMasksPart) {
    masks_.clear();
    expressions_.memory().give(std::exchange(mask_bytes_, 0));
  }
  expressions_.memory().take(bytes);
  mask_bytes_ += bytes;
  masks_.emplace(state, made);
  return made;
}

}  // namespace quire::grammar
