// Filters for numbers, defaults and attributes.
#include <cmath>

#include "jinja/builtins.h"
#include "jinja/interpreter.h"
#include "jinja/value_ops.h"

namespace quire::jinja {
namespace {

Value filter_default(Interpreter&, const Value& v, Parameters& p) {
  Value otherwise = p.optional("default_value", Value::string(Text()));
  const bool boolean = p.flag("boolean", false);
  p.done();
  return v.is_undefined() || (boolean && !truth(v)) ? otherwise : v;
}

std::optional<Value> truncated(double d) {
  if (!std::isfinite(d)) return std::nullopt;
  if (d >= 0x1p63 || d < -0x1p63) fail("an integer does not fit 64 bits");
  return Value::integer(static_cast<std::int64_t>(d));
}

Value filter_int(Interpreter&, const Value& v, Parameters& p) {
  const Value otherwise = p.optional("default", Value::integer(0));
  const std::int64_t base = p.integer("base", 10);
  p.done();
  if (v.is_undefined()) fail("{}", v.why_undefined());
  if (v.is_integral()) return Value::integer(v.as_int());
  if (v.is(Kind::kFloat)) {
    if (std::isinf(v.as_float())) fail("int: infinity is not an integer");
    return truncated(v.as_float()).value_or(otherwise);
  }
  if (!v.is_string()) return otherwise;
  if (base == 0 || (base >= 2 && base <= 36)) {
    if (const auto i = parse_int(v.as_string(), static_cast<int>(base))) return Value::integer(*i);
  }
  const auto d = parse_float(v.as_string());
  return d ? truncated(*d).value_or(otherwise) : otherwise;
}

Value filter_float(Interpreter&, const Value& v, Parameters& p) {
  const Value otherwise = p.optional("default", Value::number(0));
  p.done();
  if (v.is_undefined()) fail("{}", v.why_undefined());
  if (v.is_number()) return Value::number(v.as_float());
  const auto d = v.is_string() ? parse_float(v.as_string()) : std::nullopt;
  return d ? Value::number(*d) : otherwise;
}

Value filter_abs(Interpreter&, const Value& v, Parameters& p) {
  p.done();
  if (v.is(Kind::kFloat)) return Value::number(std::fabs(v.as_float()));
  if (!v.is_integral()) fail("abs needs a number, not {}", type_name(v));
  return v.as_int() < 0 ? negate(v) : Value::integer(v.as_int());
}

// round(d, precision): half to even on the exact binary value, which is what printing does.
double round_float(double d, std::int64_t precision) {
  if (!std::isfinite(d) || precision > 300) return d;
  if (precision >= 0) return std::strtod(fmt::format("{:.{}f}", d, static_cast<int>(precision)).c_str(), nullptr);
  if (precision < -300) return std::copysign(0.0, d);
  const double unit = std::pow(10.0, static_cast<double>(-precision));
  return std::nearbyint(d / unit) * unit;
}

Value round_integer(std::int64_t i, std::int64_t precision) {
  if (precision >= 0) return Value::integer(i);
  if (precision < -18) return Value::integer(0);
  std::int64_t unit = 1;
  for (std::int64_t k = precision; k < 0; ++k) unit *= 10;
  std::int64_t quotient = i / unit;
  const std::int64_t rest = std::abs(i % unit);
  if (rest > unit - rest || (rest == unit - rest && quotient % 2 != 0)) quotient += i < 0 ? -1 : 1;
  std::int64_t result = 0;
  if (__builtin_mul_overflow(quotient, unit, &result)) fail("an integer does not fit 64 bits");
  return Value::integer(result);
}

Value filter_round(Interpreter&, const Value& v, Parameters& p) {
  const std::int64_t precision = p.integer("precision", 0);
  const std::string method = p.text("method").value_or(Text("common")).bytes;
  p.done();
  if (method != "common" && method != "ceil" && method != "floor") fail("round: method must be common, ceil or floor");
  if (!v.is_number()) fail("round needs a number, not {}", type_name(v));
  if (method == "common") {
    return v.is_integral() ? round_integer(v.as_int(), precision) : Value::number(round_float(v.as_float(), precision));
  }
  if (std::abs(precision) > 300) fail("round: precision is out of range");
  const double unit = std::pow(10.0, static_cast<double>(precision));
  const double scaled = v.as_float() * unit;
  if (!std::isfinite(scaled)) fail("round: the number is too large");
  // + 0.0: Python goes through an integer here, which has no negative zero.
  return Value::number(((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) + 0.0) / unit);
}

Value filter_attr(Interpreter& in, const Value& v, Parameters& p) {
  const Value name = p.required("name");
  p.done();
  if (v.is_undefined()) fail("{}", v.why_undefined());
  return in.item_without_lookup(v, to_text(in.budget(), name).bytes);
}

Value filter_length(Interpreter&, const Value& v, Parameters& p) {
  p.done();
  return Value::integer(length(v));
}

constexpr Named<FilterFn> kNumberFilters[] = {
    {"abs", filter_abs},   {"attr", filter_attr},       {"count", filter_length},
    {"d", filter_default}, {"default", filter_default}, {"float", filter_float},
    {"int", filter_int},   {"length", filter_length},   {"round", filter_round},
};

}  // namespace

std::span<const Named<FilterFn>> number_filters() {
  return kNumberFilters;
}

}  // namespace quire::jinja
