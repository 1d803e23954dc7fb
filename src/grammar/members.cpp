// The members of objects, of which any set may have been seen.
#include <algorithm>

#include "grammar/expressions.h"

namespace quire::grammar {

std::uint32_t Expressions::seen_number(std::vector<bool> seen) {
  if (const auto known = seen_index_.find(seen); known != seen_index_.end()) return known->second;
  memory_.take(seen.size() / 4 + 128);
  const auto number = static_cast<std::uint32_t>(seen_.size());
  seen_index_.emplace(seen, number);
  seen_.push_back(std::move(seen));
  return number;
}

// Whether the object may end, and whether it can be completed at all.
void Expressions::set_member_flags(Expr& expr) const {
  const MemberList& list = *lists_[expr.a()];
  const std::vector<bool>& seen = seen_[expr.b()];
  std::size_t known = 0, missing = 0, possible = 0;
  bool impossible = false;
  for (std::size_t i = list.members.size(); i-- > 0;) {
    const auto& [text, required] = list.members[i];
    known += seen[i];
    const bool in_turn = list.any_order || (known == 0 && expr.c() == 0);
    if (seen[i]) continue;
    const bool can_follow = in_turn && !exprs_[text].dead;
    missing += required;
    possible += can_follow;
    impossible |= required && !can_follow;
  }
  const std::size_t count = known + expr.c(), distinct = known + (expr.c() > 0 ? 1 : 0);
  possible += expr.c() == 0 && !exprs_[list.others].dead;
  expr.nullable = missing == 0 && distinct >= list.min && count <= list.max;
  expr.dead =
      impossible || count + missing > list.max || distinct + std::min(possible, list.max - count) < list.min;
}

ExprId Expressions::members(std::uint32_t list, std::uint32_t seen, std::uint32_t others) {
  Expr expr = {.kind = ExprKind::kMembers, .regular = false, .of = {list, seen, others}};
  step(lists_[list]->members.size() / 4);
  set_member_flags(expr);
  return intern(expr);
}

// One more member, and what follows it.
ExprId Expressions::more_members(const Expr& expr) {
  const std::shared_ptr<const MemberList> list = lists_[expr.a()];
  std::vector<bool> seen = seen_[expr.b()];
  std::size_t first = 0;
  if (!list->any_order)
    for (std::size_t i = 0; i < seen.size(); ++i)
      if (seen[i]) first = i + 1;
  if (!list->any_order && expr.c() > 0) first = seen.size();
  std::vector<ExprId> parts;
  for (std::size_t i = first; i < seen.size(); ++i) {
    if (seen[i]) continue;
    seen[i] = true;
    parts.push_back(concat(list->members[i].text, members(expr.a(), seen_number(seen), expr.c())));
    seen[i] = false;
  }
  const std::uint32_t others = list->max == kNoLimit ? 1 : expr.c() + 1;
  parts.push_back(concat(list->others, members(expr.a(), expr.b(), others)));
  return any_of(std::move(parts));
}

ExprId Expressions::some_members(MemberList list, bool& may_be_empty) {
  const std::uint32_t none = seen_number(std::vector<bool>(list.members.size()));
  lists_.push_back(std::make_shared<const MemberList>(std::move(list)));
  const Expr start = exprs_[members(static_cast<std::uint32_t>(lists_.size() - 1), none, 0)];
  may_be_empty = start.nullable;
  return start.dead ? kNothing : more_members(start);
}

ExprId Expressions::body(ExprId id) {
  constexpr std::size_t kBytesBody = 48;  // of an entry of member_bodies_
  const Expr expr = exprs_[id];
  if (expr.kind == ExprKind::kRule) return rules_[expr.a()];
  const auto known = member_bodies_.find(id);
  if (known != member_bodies_.end()) return known->second;
  const ExprId more = concat(lists_[expr.a()]->comma, more_members(expr));
  memory_.take(kBytesBody);
  return member_bodies_[id] = expr.nullable ? optional(more) : more;
}

}  // namespace quire::grammar
