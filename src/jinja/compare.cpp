// Truth, length, equality, order, hashing and membership.
#include "jinja/utf8.h"
#include "jinja/value_ops.h"

namespace quire::jinja {

std::string type_name(const Value& v) {
  switch (v.kind()) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return v.is_markup() ? "Markup" : "str";
    case Kind::kList:
      return "list";
    case Kind::kTuple:
      return "tuple";
    case Kind::kDict:
      return "dict";
    case Kind::kRange:
      return "range";
    case Kind::kDictView: {
      const auto part = v.as_view().part;
      return part == DictView::Part::kKeys     ? "dict_keys"
             : part == DictView::Part::kValues ? "dict_values"
                                               : "dict_items";
    }
    case Kind::kIterator:
      return std::string(v.as_iterator().type_name());
    case Kind::kObject:
      return v.as_object().type_name();
  }
  return "?";
}

bool is_sized(const Value& v) {
  return v.is_string() || v.is_sequence() || v.is_dict() || v.is(Kind::kRange) || v.is(Kind::kDictView) ||
         v.is_undefined();
}

std::int64_t length(const Value& v) {
  switch (v.kind()) {
    case Kind::kUndefined:
      return 0;
    case Kind::kString:
      return static_cast<std::int64_t>(utf8::length(v.as_string()));
    case Kind::kList:
    case Kind::kTuple:
      return static_cast<std::int64_t>(v.items().size());
    case Kind::kDict:
      return static_cast<std::int64_t>(v.as_dict().entries.size());
    case Kind::kRange:
      return v.as_range().count;
    case Kind::kDictView:
      return static_cast<std::int64_t>(v.as_view().dict->entries.size());
    default:
      break;
  }
  fail("object of type '{}' has no length", type_name(v));
}

bool truth(const Value& v) {
  switch (v.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return v.as_int() != 0;
    case Kind::kFloat:
      return v.as_float() != 0;
    case Kind::kString:
      return !v.as_string().empty();
    case Kind::kIterator:
    case Kind::kObject:
      return true;
    default:
      return length(v) != 0;
  }
}

bool is_callable(const Value& v) {
  return v.is(Kind::kObject) && v.as_object().callable();
}

bool same(const Value& a, const Value& b) {
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kUndefined:
      return a.identity() == b.identity();
    case Kind::kNone:
      return true;
    case Kind::kBool:
    case Kind::kInt:
      return a.as_int() == b.as_int();
    case Kind::kFloat:
      return a.as_float() == b.as_float();
    case Kind::kString:
      return a.as_string() == b.as_string();
    default:
      return a.identity() == b.identity();
  }
}

namespace {

// Exact, also for integers above 2^53: long double holds every int64, x86's of 80 bits and ARM's of 128.
static_assert(sizeof(long double) > sizeof(double), "comparing int with float needs a 64-bit mantissa");
long double wide(const Value& v) {
  return v.is_integral() ? static_cast<long double>(v.as_int()) : v.as_float();
}

bool equal_sequences(Budget& budget, const std::vector<Value>& a, const std::vector<Value>& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (!equal(budget, a[i], b[i])) return false;
  }
  return true;
}

bool equal_dicts(Budget& budget, const Dict& a, const Dict& b) {
  if (a.entries.size() != b.entries.size()) return false;
  for (const auto& [key, value] : a.entries) {
    const Value* other = b.find(budget, key);
    if (!other || !equal(budget, value, *other)) return false;
  }
  return true;
}

bool equal_ranges(const Range& a, const Range& b) {
  if (a.count != b.count) return false;
  return a.count == 0 || (a.start == b.start && (a.count == 1 || a.step == b.step));
}

}  // namespace

bool equal(Budget& budget, const Value& a, const Value& b) {
  budget.step();
  if (a.is_number() && b.is_number()) return wide(a) == wide(b);
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kString:
      budget.step(a.as_string().size() / 64);
      return a.as_string() == b.as_string();
    case Kind::kList:
    case Kind::kTuple:
      return equal_sequences(budget, a.items(), b.items());
    case Kind::kDict:
      return equal_dicts(budget, a.as_dict(), b.as_dict());
    case Kind::kRange:
      return equal_ranges(a.as_range(), b.as_range());
    case Kind::kDictView: {
      const DictView &x = a.as_view(), &y = b.as_view();
      if (x.part != y.part || x.part == DictView::Part::kValues) return a.identity() == b.identity();
      if (x.part == DictView::Part::kItems) return equal_dicts(budget, *x.dict, *y.dict);
      if (x.dict->entries.size() != y.dict->entries.size()) return false;
      for (const auto& [key, value] : x.dict->entries) {
        if (!y.dict->find(budget, key)) return false;
      }
      return true;
    }
    default:
      return a.identity() == b.identity();
  }
}

bool less(Budget& budget, const Value& a, const Value& b) {
  budget.step();
  if (a.is_undefined()) fail("{}", a.why_undefined());
  if (b.is_undefined()) fail("{}", b.why_undefined());
  if (a.is_number() && b.is_number()) return wide(a) < wide(b);
  if (a.is_string() && b.is_string()) {
    budget.step(a.as_string().size() / 64);
    return a.as_string() < b.as_string();  // UTF-8 orders like code points
  }
  if (a.is_sequence() && a.kind() == b.kind()) {
    const auto &x = a.items(), &y = b.items();
    for (std::size_t i = 0; i < x.size() && i < y.size(); ++i) {
      if (!equal(budget, x[i], y[i])) return less(budget, x[i], y[i]);
    }
    return x.size() < y.size();
  }
  fail("'<' and '>' are not supported between '{}' and '{}'", type_name(a), type_name(b));
}

std::size_t hash(Budget& budget, const Value& v) {
  budget.step();
  switch (v.kind()) {
    case Kind::kUndefined:
      return 1;
    case Kind::kNone:
      return 2;
    case Kind::kBool:
    case Kind::kInt:
      return std::hash<double>{}(static_cast<double>(v.as_int()));  // 1, 1.0 and true are one key
    case Kind::kFloat:
      return std::hash<double>{}(v.as_float());
    case Kind::kString:
      return std::hash<std::string_view>{}(v.as_string());
    case Kind::kTuple: {
      std::size_t h = 0x9E3779B9;
      for (const Value& item : v.items()) h = h * 1000003 + hash(budget, item);
      return h;
    }
    case Kind::kRange:
      return static_cast<std::size_t>(v.as_range().count);
    case Kind::kIterator:
    case Kind::kObject:
      return std::hash<const void*>{}(v.identity());
    default:
      fail("unhashable type: '{}'", type_name(v));
  }
}

bool contains(Budget& budget, const Value& container, const Value& item) {
  switch (container.kind()) {
    case Kind::kString:
      if (!item.is_string()) fail("'in <string>' requires a string on the left, not {}", type_name(item));
      budget.step(container.as_string().size() / 32);
      return container.as_string().find(item.as_string()) != std::string::npos;
    case Kind::kDict:
      return container.as_dict().find(budget, item) != nullptr;
    case Kind::kDictView:
      if (container.as_view().part == DictView::Part::kKeys) {
        return container.as_view().dict->find(budget, item) != nullptr;
      }
      break;
    case Kind::kRange: {
      if (!item.is_integral()) break;
      const Range& r = container.as_range();
      if (r.count == 0) return false;
      const auto distance = static_cast<__int128>(item.as_int()) - r.start;
      return distance % r.step == 0 && distance / r.step >= 0 && distance / r.step < r.count;
    }
    default:
      break;
  }
  if (!is_iterable(container)) fail("argument of type '{}' is not iterable", type_name(container));
  const auto it = iterate(budget, container);
  for (Value v; it->next(budget, v);) {
    if (same(v, item) || equal(budget, v, item)) return true;
  }
  return false;
}

}  // namespace quire::jinja
