// The tests of "x is test".
#include "tokenizer/jinja_operators.h"
#include "tokenizer/jinja_text_methods.h"

namespace quire::jinja {
namespace {

template <typename... Kinds>
Value is_any(const Invocation& call) {
  return {(call.self.is<Kinds>() || ...)};
}

template <bool wanted>
Value is_flag(const Invocation& call) {
  const bool* flag = call.self.get<bool>();
  return {flag != nullptr && *flag == wanted};
}

Value is_defined(const Invocation& call) { return {!call.self.is_undefined()}; }

Value is_sequence(const Invocation& call) {
  return {call.self.sequence() != nullptr || truth(is_any<const Text*, const Dict*, Undefined>(call))};
}

template <bool (*compare)(Runtime&, const Value&, const Value&)>
Value compares(const Invocation& call) {
  return {compare(call.runtime, call.self, *call[0])};
}

bool same(Runtime& runtime, const Value& a, const Value& b) {
  return a.data.index() == b.data.index() && equal(runtime, a, b);
}

Value has_rest(const Invocation& call, const Value& divisor, std::int64_t rest) {
  return {equal(call.runtime, modulo(call.runtime, call.self, divisor), Value{rest})};
}

template <std::int64_t rest>
Value has_parity(const Invocation& call) {
  return has_rest(call, {std::int64_t{2}}, rest);
}

Value is_divisible(const Invocation& call) { return has_rest(call, {require_integer(*call[0])}, 0); }

constexpr Builtin kTests[] = {
    {"!=", compares<not_equal>, {"other"}, 1},
    {"<", compares<less>, {"other"}, 1},
    {"<=", compares<less_equal>, {"other"}, 1},
    {"==", compares<equal>, {"other"}, 1},
    {">", compares<greater>, {"other"}, 1},
    {">=", compares<greater_equal>, {"other"}, 1},
    {"boolean", is_any<bool>},
    {"callable", is_any<const Callable*, Loop*, Undefined>},
    {"defined", is_defined},
    {"divisibleby", is_divisible, {"num"}, 1},
    {"eq", compares<equal>, {"other"}, 1},
    {"equalto", compares<equal>, {"other"}, 1},
    {"even", has_parity<0>},
    {"false", is_flag<false>},
    {"float", is_any<double>},
    {"ge", compares<greater_equal>, {"other"}, 1},
    {"greaterthan", compares<greater>, {"other"}, 1},
    {"gt", compares<greater>, {"other"}, 1},
    {"in", compares<in>, {"other"}, 1},
    {"integer", is_any<std::int64_t>},
    {"iterable", is_any<List*, const Text*, const Dict*, Undefined, Loop*>},
    {"le", compares<less_equal>, {"other"}, 1},
    {"lessthan", compares<less>, {"other"}, 1},
    {"lower", is_all_cased<is_lower, is_upper>},
    {"lt", compares<less>, {"other"}, 1},
    {"mapping", is_any<const Dict*>},
    {"ne", compares<not_equal>, {"other"}, 1},
    {"none", is_any<None>},
    {"number", is_any<bool, std::int64_t, double>},
    {"odd", has_parity<1>},
    {"sameas", compares<same>, {"other"}, 1},
    {"sequence", is_sequence},
    {"string", is_any<const Text*>},
    {"true", is_flag<true>},
    {"undefined", is_any<Undefined>},
    {"upper", is_all_cased<is_upper, is_lower>},
};

}  // namespace

const Builtin* find_test(std::string_view name) { return find_builtin(kTests, name); }

}  // namespace quire::jinja
