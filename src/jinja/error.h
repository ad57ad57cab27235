// The one exception of the interpreter. It never leaves this folder: Template::parse and Template::render
// turn it into an Error. Exceptions are worth it here because every operator, filter and method of the
// language can fail.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>

namespace quire::jinja {

struct TemplateError {
  std::string message;
  int line = 0;              // 0: where the interpreter stands
  bool by_template = false;  // raise_exception(): the template refuses the conversation
};

template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> f, Args&&... args) {
  throw TemplateError{fmt::format(f, std::forward<Args>(args)...)};
}
template <class... Args>
[[noreturn]] void fail_at(int line, fmt::format_string<Args...> f, Args&&... args) {
  throw TemplateError{fmt::format(f, std::forward<Args>(args)...), line};
}

}  // namespace quire::jinja
