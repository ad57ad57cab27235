// Methods of lists, tuples and dictionaries. Those that would change their object exist to be refused.
#include <algorithm>

#include "jinja/builtins.h"
#include "jinja/interpreter.h"
#include "jinja/value_ops.h"

namespace quire::jinja {
namespace {

Value sequence_count(Interpreter& in, const Value& self, Parameters& p) {
  const Value wanted = p.required("value");
  p.done();
  std::int64_t count = 0;
  for (const Value& v : self.items()) count += equal(in.budget(), v, wanted) ? 1 : 0;
  return Value::integer(count);
}

Value sequence_index(Interpreter& in, const Value& self, Parameters& p) {
  const Value wanted = p.required("value");
  const auto size = static_cast<std::int64_t>(self.items().size());
  const auto bound = [&](std::int64_t at) { return std::clamp<std::int64_t>(at < 0 ? at + size : at, 0, size); };
  const std::int64_t start = bound(p.integer("start", 0)), stop = bound(p.integer("stop", size));
  p.done();
  for (std::int64_t i = start; i < stop; ++i) {
    if (equal(in.budget(), self.items()[static_cast<std::size_t>(i)], wanted)) return Value::integer(i);
  }
  fail("{} is not in the list", repr(in.budget(), wanted).bytes);
}

Value copy(Interpreter&, const Value& self, Parameters& p) {
  p.done();
  return self;  // nobody can change it
}

Value dict_get(Interpreter& in, const Value& self, Parameters& p) {
  const Value key = p.required("key");
  const Value otherwise = p.optional("default", Value::none());
  p.done();
  const Value* found = self.as_dict().find(in.budget(), key);
  return found ? *found : otherwise;
}

template <DictView::Part kPart>
Value dict_view(Interpreter& in, const Value& self, Parameters& p) {
  p.done();
  return Value::view(in.budget(), std::make_shared<DictView>(self.shared_dict(), kPart));
}

constexpr Named<FilterFn> kList[] = {
    {"append", nullptr}, {"clear", nullptr},        {"copy", copy},      {"count", sequence_count},
    {"extend", nullptr}, {"index", sequence_index}, {"insert", nullptr}, {"pop", nullptr},
    {"remove", nullptr}, {"reverse", nullptr},      {"sort", nullptr},
};
constexpr Named<FilterFn> kTuple[] = {{"count", sequence_count}, {"index", sequence_index}};
constexpr Named<FilterFn> kDict[] = {
    {"clear", nullptr},
    {"copy", copy},
    {"get", dict_get},
    {"items", dict_view<DictView::Part::kItems>},
    {"keys", dict_view<DictView::Part::kKeys>},
    {"pop", nullptr},
    {"popitem", nullptr},
    {"setdefault", nullptr},
    {"update", nullptr},
    {"values", dict_view<DictView::Part::kValues>},
};

}  // namespace

std::span<const Named<FilterFn>> list_methods() {
  return kList;
}
std::span<const Named<FilterFn>> tuple_methods() {
  return kTuple;
}
std::span<const Named<FilterFn>> dict_methods() {
  return kDict;
}

}  // namespace quire::jinja
