// Values with behaviour: functions, macros, namespaces, loop variables.
#pragma once

#include <ctime>
#include <deque>

#include "jinja/ast.h"
#include "jinja/builtins.h"

namespace quire::jinja {

// Variables of one block. Names point into the parsed template or into the caller's variables, which outlive
// it.
struct Scope {
  explicit Scope(std::shared_ptr<Scope> p) : parent(std::move(p)) {}
  void set(std::string_view name, Value value) {
    for (auto& [known, slot] : variables) {
      if (known == name) {
        slot = std::move(value);
        return;
      }
    }
    variables.emplace_back(name, std::move(value));
  }
  const Value* find(std::string_view name) const {
    for (const Scope* s = this; s; s = s->parent.get()) {
      for (const auto& [known, value] : s->variables) {
        if (known == name) return &value;
      }
    }
    return nullptr;
  }
  std::vector<std::pair<std::string_view, Value>> variables;
  std::shared_ptr<Scope> parent;
  bool captured = false;  // a macro refers to it
};
using ScopePtr = std::shared_ptr<Scope>;

class Function final : public Object {
 public:
  Function(std::string_view name, GlobalFn fn) : name_(name), fn_(fn) {}
  std::string type_name() const override { return "function"; }
  Text repr(Budget&) const override { return Text("<function " + std::string(name_) + ">"); }
  bool callable() const override { return true; }
  Value call(Interpreter& in, Arguments& arguments) override {
    Parameters parameters(name_, arguments);
    return fn_(in, parameters);
  }

 private:
  std::string_view name_;
  GlobalFn fn_;
};

class BoundMethod final : public Object {
 public:
  BoundMethod(Value self, const Named<FilterFn>& method)
      : Object(self.depth() + 1), self_(std::move(self)), method_(method) {}
  std::string type_name() const override { return "builtin_function_or_method"; }
  Text repr(Budget&) const override { return Text("<built-in method " + std::string(method_.name) + ">"); }
  bool callable() const override { return true; }
  Value call(Interpreter& in, Arguments& arguments) override {
    Parameters parameters(method_.name, arguments);
    return method_.fn(in, self_, parameters);
  }

 private:
  Value self_;
  const Named<FilterFn>& method_;
};

class Macro final : public Object {
 public:
  Macro(const MacroStmt& s, ScopePtr sc) : Object(1), stmt(s), scope(std::move(sc)) {}
  std::string type_name() const override { return "Macro"; }
  Text repr(Budget&) const override {
    return Text(stmt.name.empty() ? "<Macro anonymous>" : "<Macro '" + stmt.name + "'>");
  }
  std::optional<Value> attribute(Interpreter& in, std::string_view name) override;
  bool callable() const override { return true; }
  Value call(Interpreter& in, Arguments& arguments) override;

  const MacroStmt& stmt;
  ScopePtr scope;  // where it was defined; variables are looked up when it runs
};

// The one mutable object: `{% set ns.x = ... %}`. Cleared by the interpreter at the end, which breaks cycles.
class Namespace final : public Object {
 public:
  std::string type_name() const override { return "Namespace"; }
  Text repr(Budget& budget) const override;
  std::optional<Value> attribute(Interpreter&, std::string_view name) override {
    for (const auto& [known, value] : attributes) {
      if (known == name) return value;
    }
    return std::nullopt;
  }
  void set(Budget& budget, std::string_view name, Value value);

  std::vector<std::pair<std::string, Value>> attributes;
};

// `self`: the template's blocks, of which there are none, so that any attribute is undefined.
class TemplateReference final : public Object {
 public:
  std::string type_name() const override { return "TemplateReference"; }
  Text repr(Budget&) const override { return Text("<TemplateReference None>"); }
};

class Cycler final : public Object, public std::enable_shared_from_this<Cycler> {
 public:
  Cycler(std::vector<Value> items, int below) : Object(below + 1), items_(std::move(items)) {}
  std::string type_name() const override { return "Cycler"; }
  Text repr(Budget&) const override { return Text("<Cycler>"); }
  std::optional<Value> attribute(Interpreter& in, std::string_view name) override;
  Value next() {
    Value v = items_[at_];
    at_ = (at_ + 1) % items_.size();
    return v;
  }
  void reset() { at_ = 0; }

 private:
  std::vector<Value> items_;
  std::size_t at_ = 0;
};

class Joiner final : public Object {
 public:
  explicit Joiner(Value separator) : Object(separator.depth() + 1), separator_(std::move(separator)) {}
  std::string type_name() const override { return "Joiner"; }
  Text repr(Budget&) const override { return Text("<Joiner>"); }
  bool callable() const override { return true; }
  Value call(Interpreter&, Arguments&) override {
    return std::exchange(used_, true) ? separator_ : Value::string(Text());
  }

 private:
  Value separator_;
  bool used_ = false;
};

// `loop`. Looks ahead in its iterable only when asked to (last, nextitem, length), so that lazy filters stay
// lazy.
class LoopContext final : public Object, public std::enable_shared_from_this<LoopContext> {
 public:
  LoopContext(std::shared_ptr<Iterator> items, int depth0, const ForStmt& stmt, ScopePtr scope)
      : Object(items->depth + 1), items_(std::move(items)), depth0_(depth0), stmt_(stmt), scope_(std::move(scope)) {}
  bool advance(Budget& budget);
  // The loop has ended. Lets go of everything, lest escaped loop variables chain up through namespaces.
  void finish();
  const Value& item() const { return item_; }
  std::string type_name() const override { return "LoopContext"; }
  Text repr(Budget& budget) const override;
  std::optional<Value> attribute(Interpreter& in, std::string_view name) override;
  bool callable() const override { return true; }
  Value call(Interpreter& in, Arguments& arguments) override;  // loop(children), in a recursive loop
  Value cycle(Parameters& parameters) const;
  bool changed(Budget& budget, std::vector<Value> now);

 private:
  bool peek(Budget& budget);  // whether another item follows
  std::int64_t length(Budget& budget);

  std::shared_ptr<Iterator> items_;
  std::deque<Value> ahead_;
  Value item_, previous_;
  bool has_previous_ = false;
  std::int64_t index0_ = -1;
  int depth0_;
  std::optional<std::vector<Value>> last_changed_;
  const ForStmt& stmt_;
  ScopePtr scope_;
};

}  // namespace quire::jinja
