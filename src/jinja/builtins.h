// The names a template finds without defining them: filters, tests, global functions and the methods of
// values.
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "jinja/value.h"

namespace quire::jinja {

using FilterFn = Value (*)(Interpreter&, const Value&, Parameters&);
using TestFn = bool (*)(Interpreter&, const Value&, Parameters&);
using GlobalFn = Value (*)(Interpreter&, Parameters&);

template <class Fn>
struct Named {
  std::string_view name;
  Fn fn;  // null for a method that would change its object: the sandbox refuses it
};

FilterFn find_filter(std::string_view name);  // null when there is none
TestFn find_test(std::string_view name);
std::optional<Value> find_global(Interpreter& interpreter, std::string_view name);
const Named<FilterFn>* find_method(const Value& receiver, std::string_view name);

// The parts of the tables, one per file.
std::span<const Named<FilterFn>> text_filters();
std::span<const Named<FilterFn>> sequence_filters();
std::span<const Named<FilterFn>> lazy_filters();
std::span<const Named<FilterFn>> number_filters();
std::span<const Named<FilterFn>> string_methods();
std::span<const Named<FilterFn>> string_query_methods();
std::span<const Named<FilterFn>> list_methods();
std::span<const Named<FilterFn>> tuple_methods();
std::span<const Named<FilterFn>> dict_methods();

}  // namespace quire::jinja
