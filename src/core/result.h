// Expected failures are values: Result<T> holds a T or an Error with a fault class and a growing context.
// The fault becomes an exit code in command/ending.h, and an HTTP status in server/protocol/api_error.h.
#pragma once

#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace quire {

enum class Fault {
  kRequest,    // the caller asked for something impossible: exit code 2, HTTP 400
  kModelFile,  // a file is damaged, truncated or of a kind we do not support: exit code 2
  kCapacity,   // memory, blocks or state slots ran out: exit code 3, HTTP 503
  kBug,        // our own mistake: exit code 70, HTTP 500
};

struct Error {
  Fault fault = Fault::kBug;
  std::string message;

  // "loading m.gguf" + "tensor 3: file ends" -> "loading m.gguf: tensor 3: file ends"
  Error context(std::string_view doing) && {
    message = fmt::format("{}: {}", doing, message);
    return std::move(*this);
  }
};

template <class... Args>
Error request_error(fmt::format_string<Args...> f, Args&&... args) {
  return {Fault::kRequest, fmt::format(f, std::forward<Args>(args)...)};
}
template <class... Args>
Error file_error(fmt::format_string<Args...> f, Args&&... args) {
  return {Fault::kModelFile, fmt::format(f, std::forward<Args>(args)...)};
}
template <class... Args>
Error capacity_error(fmt::format_string<Args...> f, Args&&... args) {
  return {Fault::kCapacity, fmt::format(f, std::forward<Args>(args)...)};
}

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : v_(std::in_place_index<0>, std::move(value)) {}      // NOLINT(google-explicit-constructor)
  Result(Error error) : v_(std::in_place_index<1>, std::move(error)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return v_.index() == 0; }
  explicit operator bool() const { return ok(); }
  T& value() & { return std::get<0>(v_); }
  const T& value() const& { return std::get<0>(v_); }
  T&& value() && { return std::get<0>(std::move(v_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  const Error& error() const { return std::get<1>(v_); }
  Error take_error() { return std::get<1>(std::move(v_)); }

  Result context(std::string_view doing) && {
    if (ok()) return std::move(*this);
    return take_error().context(doing);
  }

 private:
  std::variant<T, Error> v_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)) {}  // NOLINT(google-explicit-constructor)

  bool ok() const { return !error_; }
  explicit operator bool() const { return ok(); }
  const Error& error() const { return *error_; }
  Error take_error() { return std::move(*error_); }
  Result context(std::string_view doing) && {
    if (ok()) return std::move(*this);
    return take_error().context(doing);
  }

 private:
  std::optional<Error> error_;
};
using Status = Result<void>;

// Prints the message and a stack trace and aborts: for our own bugs only, never for bad input.
[[noreturn]] void fatal(const char* file, int line, std::string_view message);

#define QUIRE_CONCAT_INNER(a, b) a##b
#define QUIRE_CONCAT(a, b) QUIRE_CONCAT_INNER(a, b)

// QUIRE_TRY(auto x, f());  -- returns f()'s error from the enclosing function, or moves its value into x.
#define QUIRE_TRY(decl, expr)                                                                           \
  auto QUIRE_CONCAT(quire_try_, __LINE__) = (expr);                                                     \
  if (!QUIRE_CONCAT(quire_try_, __LINE__).ok()) return QUIRE_CONCAT(quire_try_, __LINE__).take_error(); \
  decl = std::move(QUIRE_CONCAT(quire_try_, __LINE__)).value()

// QUIRE_CHECKED(f());  -- the same for a Status.
#define QUIRE_CHECKED(expr)                                     \
  do {                                                          \
    auto quire_status_ = (expr);                                \
    if (!quire_status_.ok()) return quire_status_.take_error(); \
  } while (false)

// An invariant of ours. The message is a fmt format string with arguments.
#define QUIRE_CHECK(cond, ...)                                                                    \
  do {                                                                                            \
    if (!(cond)) [[unlikely]]                                                                     \
      ::quire::fatal(__FILE__, __LINE__, "check failed: " #cond ": " + fmt::format(__VA_ARGS__)); \
  } while (false)

}  // namespace quire
