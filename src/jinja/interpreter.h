// Walks the tree of a parsed template. One Interpreter per render; it touches nothing outside itself.
#pragma once

#include <ctime>
#include <optional>
#include <string>

#include "jinja/objects.h"
#include "jinja/parser.h"

namespace quire::jinja {

class Interpreter {
 public:
  // `now` is what strftime_now() prints; without it that function fails.
  Interpreter(const Limits& limits, std::optional<std::tm> now) : budget_(limits), now_(now) {}
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  // Fails with TemplateError. Names in `variables` must outlive the interpreter.
  Text render(const ParsedTemplate& parsed, std::vector<std::pair<std::string_view, Value>> variables);

  Budget& budget() { return budget_; }
  int line() const { return line_; }
  const std::optional<std::tm>& now() const { return now_; }

  Value get_attribute(const Value& object, std::string_view name);        // object.name
  Value item_without_lookup(const Value& object, std::string_view name);  // methods and the like, not entries
  Value get_item(const Value& object, const Value& key);                  // object[key]
  Value call(const Value& callee, Arguments& arguments);
  Value apply_filter(std::string_view name, const Value& value, Arguments& arguments);
  bool apply_test(std::string_view name, const Value& value, Arguments& arguments);
  Value call_macro(const Macro& macro, Arguments& arguments);
  Text run_recursive(const ForStmt& stmt, const Value& iterable, const ScopePtr& scope, int depth0);
  void keep(std::shared_ptr<Namespace> ns) { namespaces_.push_back(std::move(ns)); }
  void assign(const Target& target, Value value, const ScopePtr& scope);
  Value eval(const Expr& expr, const ScopePtr& scope);

 private:
  enum class Flow { kNormal, kBreak, kContinue };
  class Deeper;

  Flow exec(const Body& body, const ScopePtr& scope);
  Flow exec(const Stmt& stmt, const ScopePtr& scope);
  Flow exec_if(const IfStmt& stmt, const ScopePtr& scope);
  Flow exec_for(const ForStmt& stmt, const Value& iterable, const ScopePtr& scope, int depth0);
  void exec_set_block(const BlockStmt& stmt, const ScopePtr& scope);
  void exec_call_block(const CallBlockStmt& stmt, const ScopePtr& scope);
  Flow exec_with(const WithStmt& stmt, const ScopePtr& scope);
  void print(const Value& value);
  Text capture(const Body& body, const ScopePtr& scope);
  ScopePtr inner_scope(const ScopePtr& scope);
  Value make_macro(const MacroStmt& stmt, const ScopePtr& scope);

  Value eval_name(const NameExpr& e, const ScopePtr& scope);
  Value eval_items(const ListExpr& e, const ScopePtr& scope);
  Value eval_dict(const DictExpr& e, const ScopePtr& scope);
  Value eval_unary(const UnaryExpr& e, const ScopePtr& scope);
  Value eval_binary(const BinaryExpr& e, const ScopePtr& scope);
  Value eval_compare(const CompareExpr& e, const ScopePtr& scope);
  Value eval_concat(const ListExpr& e, const ScopePtr& scope);
  Value eval_conditional(const ConditionalExpr& e, const ScopePtr& scope);
  Value eval_slice(const SliceExpr& e, const ScopePtr& scope);
  Value eval_call(const CallExpr& e, const ScopePtr& scope);
  Value eval_filter(const FilterExpr& e, const ScopePtr& scope);
  bool compare(CompareOp op, const Value& left, const Value& right);
  Arguments eval_arguments(const CallArguments& arguments, const ScopePtr& scope);

  Budget budget_;
  std::optional<std::tm> now_;
  StringBuilder* out_ = nullptr;
  const Value* filtered_ = nullptr;  // the text of the block whose filters run
  int depth_ = 0;
  int line_ = 0;
  // Scopes that macros refer to and namespaces can form cycles; the destructor empties them one by one.
  std::vector<ScopePtr> captured_;
  std::vector<std::shared_ptr<Namespace>> namespaces_;
};

}  // namespace quire::jinja
