// Statements, macros and scopes. Expressions are in eval.cpp.
#include "jinja/interpreter.h"

#include <algorithm>

#include "jinja/value_ops.h"

namespace quire::jinja {

class Interpreter::Deeper {
 public:
  explicit Deeper(Interpreter& in) : in_(in) {
    if (++in_.depth_ > in_.budget_.limits().max_call_depth) {
      --in_.depth_;
      fail("calls are nested too deeply (limit {})", in_.budget_.limits().max_call_depth);
    }
  }
  ~Deeper() { --in_.depth_; }
  Deeper(const Deeper&) = delete;
  Deeper& operator=(const Deeper&) = delete;

 private:
  Interpreter& in_;
};

namespace {

// The items of a loop that pass its `if`, tested when the loop asks for them.
class LoopFilter final : public Iterator {
 public:
  LoopFilter(Interpreter& in, const ForStmt& stmt, std::shared_ptr<Iterator> items, ScopePtr scope)
      : Iterator(items->depth + 1), in_(in), stmt_(stmt), items_(std::move(items)), scope_(std::move(scope)) {}
  bool next(Budget& budget, Value& out) override {
    for (Value item; items_->next(budget, item);) {
      const auto inner = std::make_shared<Scope>(scope_);
      in_.assign(stmt_.target, item, inner);
      if (truth(in_.eval(*stmt_.filter, inner))) {
        out = std::move(item);
        return true;
      }
    }
    return false;
  }

 private:
  Interpreter& in_;
  const ForStmt& stmt_;
  std::shared_ptr<Iterator> items_;
  ScopePtr scope_;
};

}  // namespace

Interpreter::~Interpreter() {
  for (const ScopePtr& scope : captured_) scope->variables.clear();
  for (const auto& ns : namespaces_) ns->attributes.clear();
}

Text Interpreter::render(const ParsedTemplate& parsed, std::vector<std::pair<std::string_view, Value>> variables) {
  StringBuilder out(budget_, budget_.limits().max_output_bytes);
  out_ = &out;
  const auto context = std::make_shared<Scope>(nullptr);
  context->variables = std::move(variables);
  exec(parsed.body, context);
  out_ = nullptr;
  return out.take();
}

ScopePtr Interpreter::inner_scope(const ScopePtr& scope) {
  budget_.allocate(sizeof(Scope));
  return std::make_shared<Scope>(scope);
}

Interpreter::Flow Interpreter::exec(const Body& body, const ScopePtr& scope) {
  const Deeper deeper(*this);
  for (const auto& stmt : body) {
    if (const Flow flow = exec(*stmt, scope); flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Interpreter::Flow Interpreter::exec(const Stmt& stmt, const ScopePtr& scope) {
  budget_.step();
  line_ = stmt.line;
  switch (stmt.kind) {
    case StmtKind::kText:
      out_->add(static_cast<const TextStmt&>(stmt).text);
      return Flow::kNormal;
    case StmtKind::kPrint:
      print(eval(*static_cast<const PrintStmt&>(stmt).value, scope));
      return Flow::kNormal;
    case StmtKind::kIf:
      return exec_if(static_cast<const IfStmt&>(stmt), scope);
    case StmtKind::kFor: {
      const auto& loop = static_cast<const ForStmt&>(stmt);
      return exec_for(loop, eval(*loop.iterable, scope), scope, 0);
    }
    case StmtKind::kSet: {
      const auto& set = static_cast<const SetStmt&>(stmt);
      assign(set.target, eval(*set.value, scope), scope);
      return Flow::kNormal;
    }
    case StmtKind::kSetBlock:
    case StmtKind::kFilterBlock:
      exec_set_block(static_cast<const BlockStmt&>(stmt), scope);
      return Flow::kNormal;
    case StmtKind::kMacro: {
      const auto& macro = static_cast<const MacroStmt&>(stmt);
      scope->set(macro.name, make_macro(macro, scope));
      return Flow::kNormal;
    }
    case StmtKind::kCallBlock:
      exec_call_block(static_cast<const CallBlockStmt&>(stmt), scope);
      return Flow::kNormal;
    case StmtKind::kWith:
      return exec_with(static_cast<const WithStmt&>(stmt), scope);
    case StmtKind::kScoped:
      return exec(static_cast<const BlockStmt&>(stmt).body, inner_scope(scope));
    case StmtKind::kBreak:
      return Flow::kBreak;
    case StmtKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNormal;
}

void Interpreter::print(const Value& value) {
  add_text(*out_, budget_, value);
}

Interpreter::Flow Interpreter::exec_if(const IfStmt& stmt, const ScopePtr& scope) {
  for (const auto& [condition, body] : stmt.branches) {
    if (truth(eval(*condition, scope))) return exec(body, scope);
  }
  return exec(stmt.otherwise, scope);
}

Interpreter::Flow Interpreter::exec_for(const ForStmt& stmt, const Value& iterable, const ScopePtr& scope, int depth0) {
  auto items = iterate(budget_, iterable);
  if (stmt.filter) items = std::make_shared<LoopFilter>(*this, stmt, std::move(items), scope);
  const auto loop = std::make_shared<LoopContext>(std::move(items), depth0, stmt, stmt.recursive ? scope : nullptr);
  const Value loop_value = Value::object(budget_, loop);
  bool any = false;
  while (loop->advance(budget_)) {
    const ScopePtr inner = inner_scope(scope);
    inner->set("loop", loop_value);
    assign(stmt.target, loop->item(), inner);
    const Flow flow = exec(stmt.body, inner);
    if (flow == Flow::kBreak) break;
    any = any || flow == Flow::kNormal;  // as Jinja: `else` also runs when every round was cut short
  }
  loop->finish();
  if (!any && !stmt.otherwise.empty()) return exec(stmt.otherwise, inner_scope(scope));
  return Flow::kNormal;
}

Text Interpreter::run_recursive(const ForStmt& stmt, const Value& iterable, const ScopePtr& scope, int depth0) {
  const Deeper deeper(*this);
  StringBuilder inner(budget_);
  StringBuilder* const outer = std::exchange(out_, &inner);
  exec_for(stmt, iterable, scope, depth0);
  out_ = outer;
  return inner.take();
}

Text Interpreter::capture(const Body& body, const ScopePtr& scope) {
  StringBuilder inner(budget_);
  StringBuilder* const outer = std::exchange(out_, &inner);
  exec(body, scope);
  out_ = outer;
  return inner.take();
}

void Interpreter::exec_set_block(const BlockStmt& stmt, const ScopePtr& scope) {
  Value text = Value::string(budget_, capture(stmt.body, inner_scope(scope)));
  if (stmt.filter) {
    const Value* const outer = std::exchange(filtered_, &text);
    Value filtered = eval(*stmt.filter, scope);
    filtered_ = outer;
    text = std::move(filtered);
  }
  if (stmt.kind == StmtKind::kFilterBlock) {
    print(text);
  } else {
    assign(stmt.target, std::move(text), scope);
  }
}

Interpreter::Flow Interpreter::exec_with(const WithStmt& stmt, const ScopePtr& scope) {
  const ScopePtr inner = inner_scope(scope);
  for (const auto& [target, value] : stmt.assignments) assign(target, eval(*value, scope), inner);
  return exec(stmt.body, inner);
}

Value Interpreter::make_macro(const MacroStmt& stmt, const ScopePtr& scope) {
  if (!scope->captured) {
    scope->captured = true;
    budget_.allocate(256);
    captured_.push_back(scope);
  }
  return Value::object(budget_, std::make_shared<Macro>(stmt, scope));
}

void Interpreter::exec_call_block(const CallBlockStmt& stmt, const ScopePtr& scope) {
  const Value callee = eval(*stmt.call->callee, scope);
  Arguments arguments = eval_arguments(stmt.call->arguments, scope);
  arguments.named.emplace_back("caller", make_macro(*stmt.caller, scope));
  print(call(callee, arguments));
}

Value Interpreter::call_macro(const Macro& macro, Arguments& arguments) {
  const MacroStmt& stmt = macro.stmt;
  const Deeper deeper(*this);
  const int call_line = line_;
  const ScopePtr scope = inner_scope(macro.scope);
  Parameters parameters(stmt.name, arguments);
  const std::size_t required = stmt.parameters.size() - stmt.defaults.size();
  // Defaults see all parameters: those that were given, and their own names as undefined, whatever they are outside.
  std::vector<std::size_t> missing;
  for (std::size_t i = 0; i < stmt.parameters.size(); ++i) {
    const std::string& name = stmt.parameters[i];
    auto given = parameters.next(name);
    if (!given && i >= required) missing.push_back(i);
    scope->set(name,
               given ? *std::move(given) : Value::undefined(fmt::format("parameter '{}' was not provided", name)));
  }
  for (const std::size_t i : missing) scope->set(stmt.parameters[i], eval(*stmt.defaults[i - required], scope));
  const bool names_caller =
      std::find(stmt.parameters.begin(), stmt.parameters.end(), "caller") != stmt.parameters.end();
  if (stmt.uses_caller && !names_caller) {
    const auto is_caller = [](const auto& named) { return named.first == "caller"; };
    const auto it = std::find_if(arguments.named.begin(), arguments.named.end(), is_caller);
    scope->set("caller", it == arguments.named.end() ? Value::undefined("no caller is defined") : it->second);
    if (it != arguments.named.end()) {
      Arguments others = parameters.rest();
      std::erase_if(others.named, is_caller);
      arguments = std::move(others);
    } else {
      arguments = parameters.rest();
    }
  } else {
    arguments = parameters.rest();
  }
  if (stmt.uses_kwargs) {
    const auto kwargs = std::make_shared<Dict>();
    // Names may be keys of what was handed in: f(**message).
    for (auto& [name, value] : arguments.named)
      kwargs->set(budget_, Value::string(Text::from_outside(name)), std::move(value));
    arguments.named.clear();
    scope->set("kwargs", Value::dict(budget_, kwargs));
  }
  if (stmt.uses_varargs) {
    scope->set("varargs", Value::tuple(budget_, std::move(arguments.positional)));
    arguments.positional.clear();
  }
  if (!arguments.named.empty()) fail("macro '{}' takes no keyword argument '{}'", stmt.name, arguments.named[0].first);
  if (!arguments.positional.empty()) {
    fail("macro '{}' takes not more than {} argument(s)", stmt.name, stmt.parameters.size());
  }
  Text text = capture(stmt.body, scope);
  line_ = call_line;
  return Value::string(budget_, std::move(text));
}

void Interpreter::assign(const Target& target, Value value, const ScopePtr& scope) {
  if (target.is_tuple) {
    const auto items = to_vector(budget_, value);
    if (items.size() != target.items.size()) {
      fail("cannot unpack {} value(s) into {} variable(s)", items.size(), target.items.size());
    }
    for (std::size_t i = 0; i < items.size(); ++i) assign(target.items[i], items[i], scope);
  } else if (target.attribute.empty()) {
    scope->set(target.name, std::move(value));
  } else {
    const Value* object = scope->find(target.name);
    const auto ns = object ? object->object_as<Namespace>() : nullptr;
    if (!ns) fail("cannot assign attribute '{}': '{}' is not a namespace", target.attribute, target.name);
    ns->set(budget_, target.attribute, std::move(value));
  }
}

// The recursion of every expression passes here.
Value Interpreter::eval(const Expr& expr, const ScopePtr& scope) {
  const Deeper deeper(*this);
  budget_.step();
  line_ = expr.line;
  switch (expr.kind) {
    case ExprKind::kConstant:
      return static_cast<const ConstantExpr&>(expr).value;
    case ExprKind::kName:
      return eval_name(static_cast<const NameExpr&>(expr), scope);
    case ExprKind::kList:
    case ExprKind::kTuple:
      return eval_items(static_cast<const ListExpr&>(expr), scope);
    case ExprKind::kDict:
      return eval_dict(static_cast<const DictExpr&>(expr), scope);
    case ExprKind::kUnary:
      return eval_unary(static_cast<const UnaryExpr&>(expr), scope);
    case ExprKind::kBinary:
      return eval_binary(static_cast<const BinaryExpr&>(expr), scope);
    case ExprKind::kLogical: {
      const auto& logical = static_cast<const LogicalExpr&>(expr);
      Value left = eval(*logical.left, scope);
      return truth(left) == logical.is_and ? eval(*logical.right, scope) : left;
    }
    case ExprKind::kCompare:
      return eval_compare(static_cast<const CompareExpr&>(expr), scope);
    case ExprKind::kConcat:
      return eval_concat(static_cast<const ListExpr&>(expr), scope);
    case ExprKind::kConditional:
      return eval_conditional(static_cast<const ConditionalExpr&>(expr), scope);
    case ExprKind::kAttribute: {
      const auto& attribute = static_cast<const AttributeExpr&>(expr);
      return get_attribute(eval(*attribute.object, scope), attribute.name);
    }
    case ExprKind::kItem: {
      const auto& item = static_cast<const ItemExpr&>(expr);
      const Value object = eval(*item.object, scope);
      return get_item(object, eval(*item.key, scope));
    }
    case ExprKind::kSlice:
      return eval_slice(static_cast<const SliceExpr&>(expr), scope);
    case ExprKind::kCall:
      return eval_call(static_cast<const CallExpr&>(expr), scope);
    case ExprKind::kFilter:
    case ExprKind::kTest:
      return eval_filter(static_cast<const FilterExpr&>(expr), scope);
  }
  return Value();
}

}  // namespace quire::jinja
