// Expressions, attribute access and calls.
#include "jinja/interpreter.h"
#include "jinja/value_ops.h"

namespace quire::jinja {

Value Interpreter::eval_name(const NameExpr& e, const ScopePtr& scope) {
  if (const Value* known = scope->find(e.name)) return *known;
  if (auto global = find_global(*this, e.name)) return *std::move(global);
  return Value::undefined(fmt::format("'{}' is undefined", e.name));
}

Value Interpreter::eval_items(const ListExpr& e, const ScopePtr& scope) {
  std::vector<Value> items;
  items.reserve(e.items.size());
  for (const ExprPtr& item : e.items) items.push_back(eval(*item, scope));
  return e.kind == ExprKind::kList ? Value::list(budget_, std::move(items)) : Value::tuple(budget_, std::move(items));
}

Value Interpreter::eval_dict(const DictExpr& e, const ScopePtr& scope) {
  const auto dict = std::make_shared<Dict>();
  for (const auto& [key, value] : e.entries) {
    const Value k = eval(*key, scope);
    dict->set(budget_, k, eval(*value, scope));
  }
  return Value::dict(budget_, dict);
}

Value Interpreter::eval_unary(const UnaryExpr& e, const ScopePtr& scope) {
  const Value v = eval(*e.operand, scope);
  switch (e.op) {
    case UnaryOp::kNot:
      return Value::boolean(!truth(v));
    case UnaryOp::kNegate:
      return negate(v);
    case UnaryOp::kPositive:
      return positive(v);
  }
  return Value();
}

Value Interpreter::eval_binary(const BinaryExpr& e, const ScopePtr& scope) {
  const Value left = eval(*e.left, scope);
  const Value right = eval(*e.right, scope);
  switch (e.op) {
    case BinaryOp::kAdd:
      return add(budget_, left, right);
    case BinaryOp::kSubtract:
      return subtract(budget_, left, right);
    case BinaryOp::kMultiply:
      return multiply(budget_, left, right);
    case BinaryOp::kDivide:
      return divide(budget_, left, right);
    case BinaryOp::kFloorDivide:
      return floor_divide(budget_, left, right);
    case BinaryOp::kModulo:
      return modulo(budget_, left, right);
    case BinaryOp::kPower:
      return power(budget_, left, right);
  }
  return Value();
}

bool Interpreter::compare(CompareOp op, const Value& left, const Value& right) {
  switch (op) {
    case CompareOp::kEqual:
      return equal(budget_, left, right);
    case CompareOp::kNotEqual:
      return !equal(budget_, left, right);
    case CompareOp::kLess:
      return less(budget_, left, right);
    case CompareOp::kGreater:
      return less(budget_, right, left);
    // Not `!less(right, left)`: that would be true for NaN.
    case CompareOp::kLessEqual:
      return less(budget_, left, right) || equal(budget_, left, right);
    case CompareOp::kGreaterEqual:
      return less(budget_, right, left) || equal(budget_, left, right);
    case CompareOp::kIn:
      return contains(budget_, right, left);
    case CompareOp::kNotIn:
      return !contains(budget_, right, left);
  }
  return false;
}

Value Interpreter::eval_compare(const CompareExpr& e, const ScopePtr& scope) {
  Value left = eval(*e.first, scope);
  for (const auto& [op, operand] : e.rest) {
    Value right = eval(*operand, scope);
    if (!compare(op, left, right)) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Value Interpreter::eval_concat(const ListExpr& e, const ScopePtr& scope) {
  StringBuilder text(budget_);
  for (const ExprPtr& item : e.items) add_text(text, budget_, eval(*item, scope));
  return Value::string(budget_, text.take());
}

Value Interpreter::eval_conditional(const ConditionalExpr& e, const ScopePtr& scope) {
  if (truth(eval(*e.condition, scope))) return eval(*e.then, scope);
  if (e.otherwise) return eval(*e.otherwise, scope);
  return Value::undefined("the condition of an inline 'if' without 'else' is false");
}

Value Interpreter::eval_slice(const SliceExpr& e, const ScopePtr& scope) {
  const Value object = eval(*e.object, scope);
  const auto bound = [&](const ExprPtr& part) { return part ? eval(*part, scope) : Value::none(); };
  const Value start = bound(e.start);
  const Value stop = bound(e.stop);
  return slice(budget_, object, start, stop, bound(e.step));
}

Arguments Interpreter::eval_arguments(const CallArguments& arguments, const ScopePtr& scope) {
  Arguments out;
  for (const ExprPtr& value : arguments.positional) out.positional.push_back(eval(*value, scope));
  if (arguments.star) {
    for (Value& value : to_vector(budget_, eval(*arguments.star, scope))) out.positional.push_back(std::move(value));
  }
  for (const auto& [name, value] : arguments.named) out.named.emplace_back(name, eval(*value, scope));
  if (arguments.double_star) {
    const Value more = eval(*arguments.double_star, scope);
    if (!more.is_dict()) fail("the argument after ** must be a mapping, not {}", type_name(more));
    for (const auto& [key, value] : more.as_dict().entries) {
      if (!key.is_string()) fail("keywords must be strings");
      for (const auto& [name, known] : out.named) {
        if (name == key.as_string()) fail("keyword argument '{}' is repeated", name);
      }
      budget_.allocate(sizeof(Value) + key.as_string().size());
      out.named.emplace_back(key.as_string(), value);
    }
  }
  return out;
}

Value Interpreter::eval_call(const CallExpr& e, const ScopePtr& scope) {
  const Value callee = eval(*e.callee, scope);
  Arguments arguments = eval_arguments(e.arguments, scope);
  line_ = e.line;
  return call(callee, arguments);
}

Value Interpreter::call(const Value& callee, Arguments& arguments) {
  if (callee.is_undefined()) fail("{}", callee.why_undefined());
  if (!is_callable(callee)) fail("'{}' object is not callable", type_name(callee));
  return callee.as_object().call(*this, arguments);
}

Value Interpreter::eval_filter(const FilterExpr& e, const ScopePtr& scope) {
  const Value value = e.value ? eval(*e.value, scope) : *filtered_;
  Arguments arguments = eval_arguments(e.arguments, scope);
  line_ = e.line;
  if (e.kind == ExprKind::kTest) return Value::boolean(apply_test(e.name, value, arguments));
  return apply_filter(e.name, value, arguments);
}

Value Interpreter::apply_filter(std::string_view name, const Value& value, Arguments& arguments) {
  const FilterFn filter = find_filter(name);
  if (!filter) fail("no filter named '{}'", name);
  Parameters parameters(name, arguments);
  return filter(*this, value, parameters);
}

bool Interpreter::apply_test(std::string_view name, const Value& value, Arguments& arguments) {
  const TestFn test = find_test(name);
  if (!test) fail("no test named '{}'", name);
  Parameters parameters(name, arguments);
  const bool result = test(*this, value, parameters);
  parameters.done();
  return result;
}

// Attributes that are not entries: methods, and what objects define.
Value Interpreter::item_without_lookup(const Value& object, std::string_view name) {
  if (object.is(Kind::kObject)) {
    if (auto v = object.as_object().attribute(*this, name)) return *std::move(v);
  } else if (const auto* method = find_method(object, name)) {
    if (method->fn) return Value::object(budget_, std::make_shared<BoundMethod>(object, *method));
    return Value::undefined(
        fmt::format("'{}' of '{}' objects is not allowed: values cannot be changed", name, type_name(object)));
  } else if (object.is_group() && (name == "grouper" || name == "list")) {
    return object.items()[name == "list" ? 1 : 0];
  }
  return Value::undefined(fmt::format("'{} object' has no attribute '{}'", type_name(object), name));
}

Value Interpreter::get_attribute(const Value& object, std::string_view name) {
  if (object.is_undefined()) fail("{}", object.why_undefined());
  Value v = item_without_lookup(object, name);
  if (!object.is_dict() || (v.is_undefined() && find_method(object, name))) return v;
  if (!v.is_undefined()) return v;
  const Value* entry = object.as_dict().find(name);
  return entry ? *entry : v;
}

Value Interpreter::get_item(const Value& object, const Value& key) {
  if (object.is_undefined()) fail("{}", object.why_undefined());
  if (object.is_dict()) {
    const bool hashable = !key.is(Kind::kList) && !key.is_dict() && !key.is(Kind::kDictView);
    if (const Value* entry = hashable ? object.as_dict().find(budget_, key) : nullptr) return *entry;
  } else if (key.is_integral() && (object.is_string() || object.is_sequence() || object.is(Kind::kRange))) {
    const std::int64_t size = length(object);
    std::int64_t at = key.as_int();
    if (at < 0 && at >= -size) at += size;
    if (at >= 0 && at < size) {
      if (object.is_sequence()) return object.items()[static_cast<std::size_t>(at)];
      if (object.is(Kind::kRange)) return Value::integer(object.as_range().at(at));
      return slice(budget_, object, Value::integer(at), Value::integer(at + 1), Value::none());
    }
  }
  if (key.is_string()) return item_without_lookup(object, key.as_string());
  return Value::undefined(fmt::format("'{} object' has no element {}", type_name(object), repr(budget_, key).bytes));
}

}  // namespace quire::jinja
