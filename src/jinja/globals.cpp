// Global functions, and the look-up of everything built in.
#include <unordered_map>

#include "jinja/builtins.h"
#include "jinja/interpreter.h"
#include "jinja/value_ops.h"

namespace quire::jinja {
namespace {

Value global_range(Interpreter& in, Parameters& p) {
  const Arguments all = p.rest();
  const auto& args = all.positional;
  if (args.empty() || args.size() > 3 || !all.named.empty()) fail("range takes one to three integers");
  for (const Value& v : args) {
    if (!v.is_integral()) fail("range takes integers, not {}", type_name(v));
  }
  const std::int64_t start = args.size() > 1 ? args[0].as_int() : 0;
  const std::int64_t stop = args[args.size() > 1 ? 1 : 0].as_int();
  const std::int64_t step = args.size() > 2 ? args[2].as_int() : 1;
  if (step == 0) fail("the step of range must not be zero");
  const auto range = std::make_shared<Range>(start, stop, step);
  if (range->count > in.budget().limits().max_range) {
    fail("range of {} elements: at most {} are allowed", range->count, in.budget().limits().max_range);
  }
  return Value::range(range);
}

// What dict(...) and namespace(...) are given: a mapping or pairs, then keywords.
std::shared_ptr<Dict> collect(Interpreter& in, Parameters& p) {
  const auto dict = std::make_shared<Dict>();
  Budget& budget = in.budget();
  const Arguments all = p.rest();
  if (all.positional.size() > 1) fail("{} takes at most one positional argument", p.function());
  for (const Value& source : all.positional) {
    if (source.is_dict()) {
      for (const auto& [key, value] : source.as_dict().entries) dict->set(budget, key, value);
      continue;
    }
    for (const Value& pair : to_vector(budget, source)) {
      const auto parts = to_vector(budget, pair);
      if (parts.size() != 2) fail("{}: expected pairs of key and value", p.function());
      dict->set(budget, parts[0], parts[1]);
    }
  }
  // Names may be keys of what was handed in: dict(**message).
  for (const auto& [name, value] : all.named) dict->set(budget, Value::string(Text::from_outside(name)), value);
  return dict;
}

Value global_dict(Interpreter& in, Parameters& p) {
  return Value::dict(in.budget(), collect(in, p));
}

Value global_namespace(Interpreter& in, Parameters& p) {
  const auto ns = std::make_shared<Namespace>();
  const auto attributes = collect(in, p);
  for (const auto& [key, value] : attributes->entries) {
    if (key.is_string()) ns->set(in.budget(), key.as_string(), value);
  }
  in.budget().allocate(256);
  in.keep(ns);
  return Value::object(in.budget(), ns);
}

Value global_cycler(Interpreter& in, Parameters& p) {
  Arguments all = p.rest();
  if (all.positional.empty() || !all.named.empty()) fail("cycler needs at least one item");
  const Value items = Value::list(in.budget(), std::move(all.positional));
  return Value::object(in.budget(), std::make_shared<Cycler>(items.items(), items.depth()));
}

Value global_joiner(Interpreter& in, Parameters& p) {
  const Value separator = p.optional("sep", Value::string(Text(", ")));
  p.done();
  return Value::object(in.budget(), std::make_shared<Joiner>(separator));
}

Value global_raise_exception(Interpreter& in, Parameters& p) {
  const Value message = p.required("message");
  p.done();
  throw TemplateError{to_text(in.budget(), message).bytes, in.line(), true};
}

Value global_strftime_now(Interpreter& in, Parameters& p) {
  const Value format = p.required("format");
  p.done();
  if (!format.is_string()) fail("strftime_now needs a format string, not {}", type_name(format));
  if (!in.now()) fail("strftime_now: no date was given to the template");
  if (format.as_string().size() > 256) fail("strftime_now: the format is longer than 256 bytes");
  // The space in front tells an empty result from one that does not fit.
  char buffer[4096];
  const std::string padded = " " + std::string(format.as_string().c_str());
  const std::size_t size = std::strftime(buffer, sizeof buffer, padded.c_str(), &*in.now());
  if (size == 0) fail("strftime_now: the date would be longer than {} bytes", sizeof buffer);
  return Value::string(in.budget(), format.as_text().changed_to(std::string(buffer + 1, size - 1)));
}

constexpr Named<GlobalFn> kGlobals[] = {
    {"cycler", global_cycler},
    {"dict", global_dict},
    {"joiner", global_joiner},
    {"namespace", global_namespace},
    {"raise_exception", global_raise_exception},
    {"range", global_range},
    {"strftime_now", global_strftime_now},
};

template <class Fn>
using Table = std::unordered_map<std::string_view, const Named<Fn>*>;

Table<FilterFn> make_table(std::initializer_list<std::span<const Named<FilterFn>>> parts) {
  Table<FilterFn> table;
  for (const auto part : parts) {
    for (const auto& entry : part) table.emplace(entry.name, &entry);
  }
  return table;
}

}  // namespace

std::optional<Value> find_global(Interpreter& in, std::string_view name) {
  for (const auto& entry : kGlobals) {
    if (entry.name == name) return Value::object(in.budget(), std::make_shared<Function>(entry.name, entry.fn));
  }
  if (name == "self") return Value::object(in.budget(), std::make_shared<TemplateReference>());
  return std::nullopt;
}

FilterFn find_filter(std::string_view name) {
  static const auto table = make_table({text_filters(), sequence_filters(), lazy_filters(), number_filters()});
  const auto it = table.find(name);
  return it == table.end() ? nullptr : it->second->fn;
}

const Named<FilterFn>* find_method(const Value& receiver, std::string_view name) {
  static const auto strings = make_table({string_methods(), string_query_methods()});
  static const auto lists = make_table({list_methods()});
  static const auto tuples = make_table({tuple_methods()});
  static const auto dicts = make_table({dict_methods()});
  const Table<FilterFn>* table = nullptr;
  switch (receiver.kind()) {
    case Kind::kString:
      table = &strings;
      break;
    case Kind::kList:
      table = &lists;
      break;
    case Kind::kTuple:
      table = &tuples;
      break;
    case Kind::kDict:
      table = &dicts;
      break;
    default:
      return nullptr;
  }
  const auto it = table->find(name);
  return it == table->end() ? nullptr : it->second;
}

}  // namespace quire::jinja
