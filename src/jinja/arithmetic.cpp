// Python's arithmetic. Integers have 64 bits here; where Python would go on with longer ones we fail.
#include <cmath>

#include "jinja/utf8.h"
#include "jinja/value_ops.h"

namespace quire::jinja {
namespace {

[[noreturn]] void overflow() {
  fail("an integer does not fit 64 bits");
}

[[noreturn]] void unsupported(const char* op, const Value& a, const Value& b) {
  if (a.is_undefined()) fail("{}", a.why_undefined());
  if (b.is_undefined()) fail("{}", b.why_undefined());
  fail("unsupported operand types for {}: '{}' and '{}'", op, type_name(a), type_name(b));
}

bool numbers(const Value& a, const Value& b) {
  return a.is_number() && b.is_number();
}
bool integers(const Value& a, const Value& b) {
  return a.is_integral() && b.is_integral();
}

Value repeat(Budget& budget, const Value& v, std::int64_t count) {
  const auto times = static_cast<std::uint64_t>(count < 0 ? 0 : count);
  const std::uint64_t size = v.is_string() ? v.as_string().size() : v.items().size();
  std::uint64_t total = 0;
  if (__builtin_mul_overflow(size, times, &total)) total = UINT64_MAX;
  if (v.is_string()) {
    StringBuilder out(budget);
    out.repeat(v.as_text(), times);
    return Value::string(budget, out.take(), v.is_markup());
  }
  budget.check_string(total);  // the limit on one string bounds one list, too
  budget.step(total);
  budget.allocate(total * sizeof(Value));
  std::vector<Value> out;
  out.reserve(total);
  for (std::uint64_t i = 0; i < times && size > 0; ++i) out.insert(out.end(), v.items().begin(), v.items().end());
  return v.is(Kind::kList) ? Value::list(budget, std::move(out)) : Value::tuple(budget, std::move(out));
}

Value join_strings(Budget& budget, const Value& a, const Value& b) {
  const bool markup = a.is_markup() || b.is_markup();
  StringBuilder out(budget);
  for (const Value* v : {&a, &b}) {
    if (markup && !v->is_markup())
      out.add(escape_html(budget, v->as_text()));
    else
      out.add(v->as_text());
  }
  return Value::string(budget, out.take(), markup);
}

// Quotient rounded down and remainder with the sign of the divisor.
struct Division {
  double quotient, remainder;
};
Division divide_floats(double a, double b) {
  double remainder = std::fmod(a, b);
  double quotient = (a - remainder) / b;
  if (remainder != 0) {
    if ((b < 0) != (remainder < 0)) {
      remainder += b;
      quotient -= 1;
    }
  } else {
    remainder = std::copysign(0.0, b);
  }
  if (quotient != 0) {
    const double floored = std::floor(quotient);
    quotient = quotient - floored > 0.5 ? floored + 1 : floored;
  } else {
    quotient = std::copysign(0.0, a / b);
  }
  return {quotient, remainder};
}

Value integer_power(std::int64_t base, std::int64_t exponent) {
  std::int64_t result = 1;
  if (base == 0 || base == 1) return Value::integer(exponent == 0 ? 1 : base);
  if (base == -1) return Value::integer(exponent % 2 ? -1 : 1);
  for (std::int64_t i = 0; i < exponent; ++i) {
    if (__builtin_mul_overflow(result, base, &result)) overflow();
  }
  return Value::integer(result);
}

}  // namespace

Value add(Budget& budget, const Value& a, const Value& b) {
  if (a.is_string() && b.is_string()) return join_strings(budget, a, b);
  if (integers(a, b)) {
    std::int64_t sum = 0;
    if (__builtin_add_overflow(a.as_int(), b.as_int(), &sum)) overflow();
    return Value::integer(sum);
  }
  if (numbers(a, b)) return Value::number(a.as_float() + b.as_float());
  if (a.is_sequence() && a.kind() == b.kind()) {
    budget.allocate((a.items().size() + b.items().size()) * sizeof(Value));
    std::vector<Value> items = a.items();
    items.insert(items.end(), b.items().begin(), b.items().end());
    return a.is(Kind::kList) ? Value::list(budget, std::move(items)) : Value::tuple(budget, std::move(items));
  }
  unsupported("+", a, b);
}

Value subtract(Budget&, const Value& a, const Value& b) {
  if (integers(a, b)) {
    std::int64_t difference = 0;
    if (__builtin_sub_overflow(a.as_int(), b.as_int(), &difference)) overflow();
    return Value::integer(difference);
  }
  if (numbers(a, b)) return Value::number(a.as_float() - b.as_float());
  unsupported("-", a, b);
}

Value multiply(Budget& budget, const Value& a, const Value& b) {
  if (integers(a, b)) {
    std::int64_t product = 0;
    if (__builtin_mul_overflow(a.as_int(), b.as_int(), &product)) overflow();
    return Value::integer(product);
  }
  if (numbers(a, b)) return Value::number(a.as_float() * b.as_float());
  if ((a.is_string() || a.is_sequence()) && b.is_integral()) return repeat(budget, a, b.as_int());
  if ((b.is_string() || b.is_sequence()) && a.is_integral()) return repeat(budget, b, a.as_int());
  unsupported("*", a, b);
}

Value divide(Budget&, const Value& a, const Value& b) {
  if (!numbers(a, b)) unsupported("/", a, b);
  if (b.as_float() == 0) fail("division by zero");
  if (integers(a, b)) {
    return Value::number(static_cast<double>(static_cast<long double>(a.as_int()) / b.as_int()));
  }
  return Value::number(a.as_float() / b.as_float());
}

Value floor_divide(Budget&, const Value& a, const Value& b) {
  if (!numbers(a, b)) unsupported("//", a, b);
  if (b.as_float() == 0) fail("division by zero");
  if (!integers(a, b)) return Value::number(divide_floats(a.as_float(), b.as_float()).quotient);
  const std::int64_t x = a.as_int(), y = b.as_int();
  if (x == INT64_MIN && y == -1) overflow();
  return Value::integer(x / y - (x % y != 0 && (x % y < 0) != (y < 0) ? 1 : 0));
}

Value modulo(Budget& budget, const Value& a, const Value& b) {
  if (a.is_string()) return Value::string(budget, percent_format(budget, a.as_text(), b), a.is_markup());
  if (!numbers(a, b)) unsupported("%", a, b);
  if (b.as_float() == 0) fail("division by zero");
  if (!integers(a, b)) return Value::number(divide_floats(a.as_float(), b.as_float()).remainder);
  const std::int64_t x = a.as_int(), y = b.as_int();
  if (y == -1) return Value::integer(0);
  const std::int64_t r = x % y;
  return Value::integer(r != 0 && (r < 0) != (y < 0) ? r + y : r);
}

Value power(Budget&, const Value& a, const Value& b) {
  if (!numbers(a, b)) unsupported("**", a, b);
  if (integers(a, b) && b.as_int() >= 0) return integer_power(a.as_int(), b.as_int());
  const double x = a.as_float(), y = b.as_float();
  if (x == 0 && y < 0) fail("0.0 cannot be raised to a negative power");
  if (x < 0 && std::isfinite(y) && y != std::floor(y)) fail("a negative number to a broken power is complex");
  const double result = std::pow(x, y);
  if (std::isinf(result) && std::isfinite(x) && std::isfinite(y)) fail("the power is too large for a float");
  return Value::number(result);
}

Value negate(const Value& v) {
  if (v.is(Kind::kFloat)) return Value::number(-v.as_float());
  if (v.is_undefined()) fail("{}", v.why_undefined());
  if (!v.is_integral()) fail("bad operand type for unary -: '{}'", type_name(v));
  if (v.as_int() == INT64_MIN) overflow();
  return Value::integer(-v.as_int());
}

Value positive(const Value& v) {
  if (v.is(Kind::kFloat)) return v;
  if (v.is_undefined()) fail("{}", v.why_undefined());
  if (!v.is_integral()) fail("bad operand type for unary +: '{}'", type_name(v));
  return Value::integer(v.as_int());
}

}  // namespace quire::jinja
