#include "jinja/objects.h"

#include "jinja/interpreter.h"
#include "jinja/value_ops.h"

namespace quire::jinja {
namespace {

// A method of one of the objects below, bound to it.
class ObjectMethod final : public Object {
 public:
  using Fn = std::function<Value(Interpreter&, Parameters&)>;
  ObjectMethod(std::string_view name, int depth_below, Fn fn)
      : Object(depth_below + 1), name_(name), fn_(std::move(fn)) {}
  std::string type_name() const override { return "method"; }
  Text repr(Budget&) const override { return Text("<bound method " + std::string(name_) + ">"); }
  bool callable() const override { return true; }
  Value call(Interpreter& in, Arguments& arguments) override {
    Parameters parameters(name_, arguments);
    return fn_(in, parameters);
  }

 private:
  std::string_view name_;
  Fn fn_;
};

}  // namespace

Value Macro::call(Interpreter& in, Arguments& arguments) {
  return in.call_macro(*this, arguments);
}

std::optional<Value> Macro::attribute(Interpreter& in, std::string_view name) {
  if (name == "name") return stmt.name.empty() ? Value::none() : Value::string(Text(stmt.name));
  if (name == "catch_kwargs") return Value::boolean(stmt.uses_kwargs);
  if (name == "catch_varargs") return Value::boolean(stmt.uses_varargs);
  if (name == "caller") return Value::boolean(stmt.uses_caller);
  if (name != "arguments") return std::nullopt;
  std::vector<Value> names;
  for (const std::string& parameter : stmt.parameters) names.push_back(Value::string(Text(parameter)));
  return Value::tuple(in.budget(), std::move(names));
}

Text Namespace::repr(Budget& budget) const {
  // An attribute may hold the namespace itself; printing only names cannot run in circles.
  StringBuilder out(budget);
  out.add("<Namespace {");
  for (std::size_t i = 0; i < attributes.size(); ++i) {
    if (i > 0) out.add(", ");
    const Value& v = attributes[i].second;
    out.add(Text::from_outside("'" + attributes[i].first + "': "));  // names may be keys of what was handed in
    if (v.is(Kind::kObject))
      out.add("<" + jinja::type_name(v) + ">");
    else
      out.add(jinja::repr(budget, v));
  }
  out.add("}>");
  return out.take();
}

void Namespace::set(Budget& budget, std::string_view name, Value value) {
  budget.step(1 + attributes.size() / 16);
  for (auto& [known, slot] : attributes) {
    if (known == name) {
      slot = std::move(value);
      return;
    }
  }
  budget.allocate(sizeof(attributes[0]) + name.size());
  attributes.emplace_back(std::string(name), std::move(value));
}

std::optional<Value> Cycler::attribute(Interpreter& in, std::string_view name) {
  if (name == "current") return items_[at_];
  if (name != "next" && name != "reset") return std::nullopt;
  const bool is_next = name == "next";
  return Value::object(in.budget(), std::make_shared<ObjectMethod>(
                                        is_next ? "next" : "reset", depth,
                                        [self = shared_from_this(), is_next](Interpreter&, Parameters& parameters) {
                                          parameters.done();
                                          if (is_next) return self->next();
                                          self->reset();
                                          return Value::none();
                                        }));
}

bool LoopContext::peek(Budget& budget) {
  if (!ahead_.empty()) return true;
  Value next;
  if (!items_ || !items_->next(budget, next)) return false;
  ahead_.push_back(std::move(next));
  return true;
}

bool LoopContext::advance(Budget& budget) {
  if (!peek(budget)) return false;
  if (index0_ >= 0) {
    previous_ = std::move(item_);
    has_previous_ = true;
  }
  item_ = std::move(ahead_.front());
  ahead_.pop_front();
  ++index0_;
  return true;
}

void LoopContext::finish() {
  items_.reset();
  ahead_.clear();
  item_ = previous_ = Value();
  last_changed_.reset();
  scope_.reset();
}

std::int64_t LoopContext::length(Budget& budget) {
  for (Value next; items_ && items_->next(budget, next);) {
    budget.allocate(sizeof(Value));
    ahead_.push_back(std::move(next));
  }
  return index0_ + 1 + static_cast<std::int64_t>(ahead_.size());
}

Text LoopContext::repr(Budget&) const {
  return Text(fmt::format("<LoopContext {}>", index0_ + 1));
}

Value LoopContext::cycle(Parameters& parameters) const {
  const Arguments all = parameters.rest();
  if (all.positional.empty()) fail("loop.cycle() needs something to cycle through");
  return all.positional[static_cast<std::size_t>(index0_) % all.positional.size()];
}

bool LoopContext::changed(Budget& budget, std::vector<Value> now) {
  bool same_as_last = last_changed_ && last_changed_->size() == now.size();
  for (std::size_t i = 0; same_as_last && i < now.size(); ++i)
    same_as_last = equal(budget, (*last_changed_)[i], now[i]);
  if (!same_as_last) last_changed_ = std::move(now);
  return !same_as_last;
}

std::optional<Value> LoopContext::attribute(Interpreter& in, std::string_view name) {
  Budget& budget = in.budget();
  if (name == "index") return Value::integer(index0_ + 1);
  if (name == "index0") return Value::integer(index0_);
  if (name == "first") return Value::boolean(index0_ == 0);
  if (name == "last") return Value::boolean(!peek(budget));
  if (name == "length") return Value::integer(length(budget));
  if (name == "revindex") return Value::integer(length(budget) - index0_);
  if (name == "revindex0") return Value::integer(length(budget) - index0_ - 1);
  if (name == "depth") return Value::integer(depth0_ + 1);
  if (name == "depth0") return Value::integer(depth0_);
  if (name == "previtem") return has_previous_ ? previous_ : Value::undefined("there is no previous item");
  if (name == "nextitem") return peek(budget) ? ahead_.front() : Value::undefined("there is no next item");
  if (name != "cycle" && name != "changed") return std::nullopt;
  const bool is_cycle = name == "cycle";
  return Value::object(
      budget, std::make_shared<ObjectMethod>(is_cycle ? "cycle" : "changed", depth,
                                             [self = shared_from_this(), is_cycle](Interpreter& i, Parameters& p) {
                                               if (is_cycle) return self->cycle(p);
                                               return Value::boolean(self->changed(i.budget(), p.rest().positional));
                                             }));
}

Value LoopContext::call(Interpreter& in, Arguments& arguments) {
  if (!scope_) fail("the loop must have the 'recursive' marker to be called");
  Parameters parameters("loop", arguments);
  const Value iterable = parameters.required("iterable");
  parameters.done();
  return Value::string(in.budget(), in.run_recursive(stmt_, iterable, scope_, depth0_ + 1));
}

}  // namespace quire::jinja
