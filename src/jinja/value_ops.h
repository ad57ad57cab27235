// Python's operators on values. All fail with TemplateError where Python raises.
#pragma once

#include "jinja/value.h"

namespace quire::jinja {

std::string type_name(const Value& v);  // "str", "int", ...
bool truth(const Value& v);
bool is_callable(const Value& v);
bool is_sized(const Value& v);
std::int64_t length(const Value& v);

bool equal(Budget& budget, const Value& a, const Value& b);
bool less(Budget& budget, const Value& a, const Value& b);  // a < b
bool contains(Budget& budget, const Value& container, const Value& item);
std::size_t hash(Budget& budget, const Value& v);
bool same(const Value& a, const Value& b);  // Python's `is`, for what a template can observe

bool is_iterable(const Value& v);
std::shared_ptr<Iterator> iterate(Budget& budget, const Value& v);
std::vector<Value> to_vector(Budget& budget, const Value& v);  // list(v)
std::shared_ptr<Iterator> iterate_vector(Budget& budget, std::vector<Value> items);
// reversed(v); nullptr when v has no order to walk backwards.
std::shared_ptr<Iterator> iterate_reversed(Budget& budget, const Value& v);

Value add(Budget& budget, const Value& a, const Value& b);
Value subtract(Budget& budget, const Value& a, const Value& b);
Value multiply(Budget& budget, const Value& a, const Value& b);
Value divide(Budget& budget, const Value& a, const Value& b);
Value floor_divide(Budget& budget, const Value& a, const Value& b);
Value modulo(Budget& budget, const Value& a, const Value& b);
Value power(Budget& budget, const Value& a, const Value& b);
Value negate(const Value& v);
Value positive(const Value& v);
Value slice(Budget& budget, const Value& v, const Value& start, const Value& stop, const Value& step);

// print.cpp
Text to_text(Budget& budget, const Value& v);  // str(v)
void add_text(StringBuilder& out, Budget& budget, const Value& v);
Text repr(Budget& budget, const Value& v);
std::string float_repr(double d);
Text escape_html(Budget& budget, const Text& text);
// The text with `change` made of it, which changes letters and not their order: upper, lower, ...
Text change_letters(const Text& text, std::string (*change)(std::string_view));
// int(text, base) and float(text) as Python reads them; nullopt where it raises ValueError.
std::optional<std::int64_t> parse_int(std::string_view text, int base);
std::optional<double> parse_float(std::string_view text);

// format.cpp
Text percent_format(Budget& budget, const Text& format, const Value& arguments);
Value string_format(Interpreter& interpreter, const Text& format, const Arguments& arguments);
std::string format_float(double d, char type, int precision);

}  // namespace quire::jinja
