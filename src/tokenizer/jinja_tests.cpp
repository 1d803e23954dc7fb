// The tests of "x is test".

#include "base/error.h"
#include "tokenizer/jinja_builtins.h"
#include "tokenizer/jinja_format.h"
#include "tokenizer/jinja_operators.h"
#include "tokenizer/jinja_text_methods.h"

namespace quire::jinja {
namespace {

bool is_number(const Value& value) { return as_number(value).has_value(); }
bool is_mapping(const Value& value) { return value.dict() != nullptr; }
bool is_float(const Value& value) { return value.get<double>() != nullptr; }
bool is_integer(const Value& value) { return value.get<std::int64_t>() != nullptr; }
bool is_boolean(const Value& value) { return value.get<bool>() != nullptr; }
bool is_true(const Value& value) { return is_boolean(value) && *value.get<bool>(); }
bool is_false(const Value& value) { return is_boolean(value) && !*value.get<bool>(); }
bool is_string(const Value& value) { return value.text() != nullptr; }
bool is_defined(const Value& value) { return !value.is_undefined(); }
bool is_undefined(const Value& value) { return value.is_undefined(); }
bool is_none(const Value& value) { return value.is_none(); }

bool is_iterable(const Value& value) {
  return value.list() != nullptr || is_string(value) || is_mapping(value) || value.is_undefined() ||
         value.pointer<Loop>() != nullptr;
}

bool is_sequence(const Value& value) {
  const List* list = value.list();
  const bool indexed = list != nullptr && (list->kind == ListKind::kList || list->kind == ListKind::kTuple ||
                                           list->kind == ListKind::kRange);
  return indexed || is_string(value) || is_mapping(value) || value.is_undefined();
}

bool is_callable(const Value& value) {
  return value.pointer<const Callable>() != nullptr || value.pointer<Loop>() != nullptr ||
         value.is_undefined();
}

template <bool (*test)(const Value&)>
Value plain_test(const Invocation& call) {
  bind(call, {});
  return {test(call.self)};
}

template <CompareOp op>
Value compare_test(const Invocation& call) {
  const auto args = bind(call, {"other"}, 1);
  return {apply_compare(call.runtime, op, call.self, *args[0])};
}

Value same_test(const Invocation& call) {
  const auto args = bind(call, {"other"}, 1);
  return {call.self.data.index() == args[0]->data.index() && equal(call.runtime, call.self, *args[0])};
}

bool is_multiple(const Invocation& call, std::int64_t divisor, std::int64_t rest) {
  const Value remainder = apply_binary(call.runtime, BinaryOp::kModulo, call.self, Value{divisor});
  return equal(call.runtime, remainder, Value{rest});
}

template <std::int64_t rest>
Value parity_test(const Invocation& call) {
  bind(call, {});
  return {is_multiple(call, 2, rest)};
}

Value divisible_test(const Invocation& call) {
  const auto args = bind(call, {"num"}, 1);
  return {is_multiple(call, require_integer(*args[0]), 0)};
}

template <bool (*test)(const Text&)>
Value case_test(const Invocation& call) {
  bind(call, {});
  return {test(to_text(call.runtime, call.self))};
}

constexpr std::array kTests = {
    Builtin{"!=", compare_test<CompareOp::kNotEqual>},
    Builtin{"<", compare_test<CompareOp::kLess>},
    Builtin{"<=", compare_test<CompareOp::kLessEqual>},
    Builtin{"==", compare_test<CompareOp::kEqual>},
    Builtin{">", compare_test<CompareOp::kGreater>},
    Builtin{">=", compare_test<CompareOp::kGreaterEqual>},
    Builtin{"boolean", plain_test<is_boolean>},
    Builtin{"callable", plain_test<is_callable>},
    Builtin{"defined", plain_test<is_defined>},
    Builtin{"divisibleby", divisible_test},
    Builtin{"eq", compare_test<CompareOp::kEqual>},
    Builtin{"equalto", compare_test<CompareOp::kEqual>},
    Builtin{"even", parity_test<0>},
    Builtin{"false", plain_test<is_false>},
    Builtin{"float", plain_test<is_float>},
    Builtin{"ge", compare_test<CompareOp::kGreaterEqual>},
    Builtin{"greaterthan", compare_test<CompareOp::kGreater>},
    Builtin{"gt", compare_test<CompareOp::kGreater>},
    Builtin{"in", compare_test<CompareOp::kIn>},
    Builtin{"integer", plain_test<is_integer>},
    Builtin{"iterable", plain_test<is_iterable>},
    Builtin{"le", compare_test<CompareOp::kLessEqual>},
    Builtin{"lessthan", compare_test<CompareOp::kLess>},
    Builtin{"lower", case_test<is_all_lower>},
    Builtin{"lt", compare_test<CompareOp::kLess>},
    Builtin{"mapping", plain_test<is_mapping>},
    Builtin{"ne", compare_test<CompareOp::kNotEqual>},
    Builtin{"none", plain_test<is_none>},
    Builtin{"number", plain_test<is_number>},
    Builtin{"odd", parity_test<1>},
    Builtin{"sameas", same_test},
    Builtin{"sequence", plain_test<is_sequence>},
    Builtin{"string", plain_test<is_string>},
    Builtin{"true", plain_test<is_true>},
    Builtin{"undefined", plain_test<is_undefined>},
    Builtin{"upper", case_test<is_all_upper>},
};

}  // namespace

Native find_test(std::string_view name) { return find_builtin(kTests, name); }

}  // namespace quire::jinja
