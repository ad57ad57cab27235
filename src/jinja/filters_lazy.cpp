// map, select and reject: generators that do their work when they are walked, as in Jinja. A template that
// takes only the first match never sees the error that a later element would cause.
#include "jinja/attribute_path.h"
#include "jinja/value_ops.h"

namespace quire::jinja {
namespace {

int depth_with(const Value& source, const Arguments& arguments) {
  int depth = source.depth();
  for (const Value& v : arguments.positional) depth = std::max(depth, v.depth());
  for (const auto& [name, v] : arguments.named) depth = std::max(depth, v.depth());
  return depth + 1;
}

class LazyIterator : public Iterator {
 public:
  LazyIterator(Interpreter& in, const Value& source, int below) : Iterator(below), in_(in), source_(source) {}
  bool next(Budget& budget, Value& out) override {
    if (!items_) {
      if (!truth(source_)) return false;  // as Jinja: anything false gives nothing, even if it cannot be walked
      items_ = iterate(budget, source_);
      prepare();
    }
    return produce(budget, out);
  }

 protected:
  virtual void prepare() = 0;
  virtual bool produce(Budget& budget, Value& out) = 0;

  Interpreter& in_;
  Value source_;
  std::shared_ptr<Iterator> items_;
};

class MapIterator final : public LazyIterator {
 public:
  MapIterator(Interpreter& in, const Value& source, Arguments arguments)
      : LazyIterator(in, source, depth_with(source, arguments)), arguments_(std::move(arguments)) {}

 private:
  void prepare() override {
    Parameters p("map", arguments_);
    const bool has_attribute = !arguments_.named.empty() && arguments_.positional.empty();
    if (has_attribute) {
      const auto attribute = p.next("attribute");
      if (!attribute) fail("map needs a filter name or attribute=");
      const Value otherwise = p.optional("default", Value::none());
      p.done();
      path_.emplace(in_, *attribute, false);
      if (!otherwise.is_none()) otherwise_ = otherwise;
      return;
    }
    if (arguments_.positional.empty()) fail("map needs a filter name or attribute=");
    filter_ = arguments_.positional[0];
    if (!filter_.is_string()) fail("map: the filter name must be a string");
    arguments_.positional.erase(arguments_.positional.begin());
  }
  bool produce(Budget& budget, Value& out) override {
    Value item;
    if (!items_->next(budget, item)) return false;
    if (path_) {
      out = path_->of(item, otherwise_);
    } else {
      Arguments copy = arguments_;
      out = in_.apply_filter(filter_.as_string(), item, copy);
    }
    return true;
  }

  Arguments arguments_;
  std::optional<AttributePath> path_;
  std::optional<Value> otherwise_;
  Value filter_;
};

class SelectIterator final : public LazyIterator {
 public:
  SelectIterator(Interpreter& in, const Value& source, Arguments arguments, bool keep, bool by_attribute)
      : LazyIterator(in, source, depth_with(source, arguments)),
        arguments_(std::move(arguments)),
        keep_(keep),
        by_attribute_(by_attribute) {}

 private:
  void prepare() override {
    auto& positional = arguments_.positional;
    if (by_attribute_) {
      if (positional.empty()) fail("selectattr and rejectattr need an attribute name");
      path_.emplace(in_, positional[0], false);
      positional.erase(positional.begin());
    }
    if (positional.empty()) return;
    test_ = positional[0];
    if (!test_.is_string()) fail("the test name must be a string");
    if (!find_test(test_.as_string())) fail("no test named '{}'", test_.as_string());
    positional.erase(positional.begin());
  }
  bool produce(Budget& budget, Value& out) override {
    for (Value item; items_->next(budget, item);) {
      const Value subject = path_ ? path_->of(item) : item;
      Arguments copy = arguments_;
      const bool passes = test_.is_string() ? in_.apply_test(test_.as_string(), subject, copy) : truth(subject);
      if (passes == keep_) {
        out = std::move(item);
        return true;
      }
    }
    return false;
  }

  Arguments arguments_;
  bool keep_, by_attribute_;
  std::optional<AttributePath> path_;
  Value test_;
};

Value filter_map(Interpreter& in, const Value& v, Parameters& p) {
  return Value::iterator(in.budget(), std::make_shared<MapIterator>(in, v, p.rest()));
}

template <bool kKeep, bool kByAttribute>
Value filter_select(Interpreter& in, const Value& v, Parameters& p) {
  return Value::iterator(in.budget(), std::make_shared<SelectIterator>(in, v, p.rest(), kKeep, kByAttribute));
}

constexpr Named<FilterFn> kLazyFilters[] = {
    {"map", filter_map},
    {"reject", filter_select<false, false>},
    {"rejectattr", filter_select<false, true>},
    {"select", filter_select<true, false>},
    {"selectattr", filter_select<true, true>},
};

}  // namespace

std::span<const Named<FilterFn>> lazy_filters() {
  return kLazyFilters;
}

}  // namespace quire::jinja
