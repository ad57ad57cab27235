// What may follow `is`.
#include <algorithm>

#include "jinja/builtins.h"
#include "jinja/interpreter.h"
#include "jinja/utf8.h"
#include "jinja/value_ops.h"

namespace quire::jinja {
namespace {

using In = Interpreter&;
using V = const Value&;
using P = Parameters&;

bool is_even(In in, V v) {
  return equal(in.budget(), modulo(in.budget(), v, Value::integer(2)), Value::integer(0));
}
bool is_odd(In in, V v) {
  return equal(in.budget(), modulo(in.budget(), v, Value::integer(2)), Value::integer(1));
}

// At least one letter with case, and none of the other case.
template <bool kUpper>
bool has_case(In in, V v) {
  const std::string text = to_text(in.budget(), v).bytes;
  bool any = false;
  for (std::size_t at = 0; at < text.size();) {
    const utf8::Char c = utf8::decode(text, at);
    if (utf8::is_cased(c.code)) {
      if (kUpper ? !utf8::is_upper(c.code) : !utf8::is_lower(c.code)) return false;
      any = true;
    }
    at += c.size;
  }
  return any;
}

bool is_sequence(V v) {
  return is_sized(v) && !v.is(Kind::kDictView);
}

constexpr Named<TestFn> kTests[] = {
    {"!=", [](In in, V v, P p) { return !equal(in.budget(), v, p.required("other")); }},
    {"<", [](In in, V v, P p) { return less(in.budget(), v, p.required("other")); }},
    {"<=",
     [](In in, V v, P p) {
       const Value b = p.required("other");
       return less(in.budget(), v, b) || equal(in.budget(), v, b);
     }},
    {"==", [](In in, V v, P p) { return equal(in.budget(), v, p.required("other")); }},
    {">", [](In in, V v, P p) { return less(in.budget(), p.required("other"), v); }},
    {">=",
     [](In in, V v, P p) {
       const Value b = p.required("other");
       return less(in.budget(), b, v) || equal(in.budget(), v, b);
     }},
    {"boolean", [](In, V v, P) { return v.is_bool(); }},
    {"callable", [](In, V v, P) { return is_callable(v) || v.is_undefined(); }},
    {"defined", [](In, V v, P) { return !v.is_undefined(); }},
    {"divisibleby",
     [](In in, V v, P p) { return equal(in.budget(), modulo(in.budget(), v, p.required("num")), Value::integer(0)); }},
    {"escaped", [](In, V v, P) { return v.is_markup(); }},
    {"even", [](In in, V v, P) { return is_even(in, v); }},
    {"false", [](In, V v, P) { return v.is_bool() && !v.as_bool(); }},
    {"filter",
     [](In in, V v, P) {
       hash(in.budget(), v); /* fails on what cannot be a name */
       return v.is_string() && find_filter(v.as_string()) != nullptr;
     }},
    {"float", [](In, V v, P) { return v.is(Kind::kFloat); }},
    {"in", [](In in, V v, P p) { return contains(in.budget(), p.required("seq"), v); }},
    {"integer", [](In, V v, P) { return v.is(Kind::kInt); }},
    {"iterable", [](In, V v, P) { return is_iterable(v); }},
    {"lower", [](In in, V v, P) { return has_case<false>(in, v); }},
    {"mapping", [](In, V v, P) { return v.is_dict(); }},
    {"none", [](In, V v, P) { return v.is_none(); }},
    {"number", [](In, V v, P) { return v.is_number(); }},
    {"odd", [](In in, V v, P) { return is_odd(in, v); }},
    {"sameas", [](In, V v, P p) { return same(v, p.required("other")); }},
    {"sequence", [](In, V v, P) { return is_sequence(v); }},
    {"string", [](In, V v, P) { return v.is_string(); }},
    {"test",
     [](In in, V v, P) {
       hash(in.budget(), v); /* fails on what cannot be a name */
       return v.is_string() && find_test(v.as_string()) != nullptr;
     }},
    {"true", [](In, V v, P) { return v.is_bool() && v.as_bool(); }},
    {"undefined", [](In, V v, P) { return v.is_undefined(); }},
    {"upper", [](In in, V v, P) { return has_case<true>(in, v); }},
};

constexpr std::pair<std::string_view, std::string_view> kAliases[] = {
    {"eq", "=="}, {"equalto", "=="}, {"ge", ">="}, {"greaterthan", ">"}, {"gt", ">"},
    {"le", "<="}, {"lessthan", "<"}, {"lt", "<"},  {"ne", "!="},
};

}  // namespace

TestFn find_test(std::string_view name) {
  for (const auto& [alias, meant] : kAliases) {
    if (alias == name) name = meant;
  }
  const auto* it = std::lower_bound(std::begin(kTests), std::end(kTests), name,
                                    [](const auto& entry, std::string_view n) { return entry.name < n; });
  return it != std::end(kTests) && it->name == name ? it->fn : nullptr;
}

}  // namespace quire::jinja
