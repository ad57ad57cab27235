#include "command/flag_values.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <concepts>
#include <type_traits>

#include "core/count.h"
#include "core/escape.h"

namespace quire::cli {
namespace {

// ---- Types of members ----

template <class T>
struct Value {
  using type = T;
  static constexpr bool several = false;
};
template <class T>
struct Value<std::optional<T>> : Value<T> {};
template <class T>
struct Value<std::vector<T>> : Value<T> {
  static constexpr bool several = true;
};

template <class T>
constexpr const char* kind_name() {
  if (std::is_same_v<T, bool>) return "";
  if (std::is_floating_point_v<T>) return "FLOAT";
  if (std::is_unsigned_v<T>) return "UINT";
  return std::is_integral_v<T> ? "INT" : "TEXT";
}

// Calls f with a null pointer of the member's type: of each one's value, where it takes several.
template <class F>
auto of_value(const Member& member, F&& f) {
  return std::visit(
      [&](const auto& m) {
        using M = std::decay_t<decltype(m)>;
        if constexpr (std::is_pointer_v<M>)
          return f(static_cast<typename Value<std::remove_pointer_t<M>>::type*>(nullptr));
        else if constexpr (std::is_same_v<M, std::monostate>)
          return f(static_cast<bool*>(nullptr));
        else
          return f(static_cast<std::string*>(nullptr));
      },
      member);
}

// ---- Words ----

std::string out_of_range(const std::string& text) {
  return fmt::format("{} is out of range", escaped(text, 60));
}

template <class T>
concept Whole = std::integral<T> && !std::same_as<T, bool>;

template <Whole T>
std::string check_word(std::string& text, const T*) {
  std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t> value = 0;
  switch (parse_count(text, value)) {
    case CountError::kNotWhole:
      return fmt::format("'{}' is not a whole number", escaped(text, 60));
    case CountError::kOutOfRange:
      return out_of_range(text);
    case CountError::kNone:
      break;
  }
  if (!std::in_range<T>(value)) return out_of_range(text);
  text = std::to_string(value);  // without the zeros that would make it octal elsewhere, and without a letter
  return {};
}

template <std::floating_point T>
std::string check_word(std::string& text, const T*) {
  T value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc::result_out_of_range && rest == end) return out_of_range(text);
  if (error != std::errc{} || rest != end || !std::isfinite(value))
    return fmt::format("'{}' is not a number", escaped(text, 60));
  return {};
}

std::string check_word(const std::string& text, const std::string*) {
  return text.empty() ? "is empty; give a value, or leave the option out" : "";
}

// CLI11 sets switches by itself.
std::string check_word(const std::string&, const bool*) {
  return {};
}

template <class T>
void take_word(const std::string& text, T& value) {
  if constexpr (std::is_arithmetic_v<T>)
    std::from_chars(text.data(), text.data() + text.size(), value);
  else
    value = text;
}
template <class T>
void take_word(const std::string& text, std::optional<T>& value) {
  take_word(text, value.emplace());
}

template <class T>
std::string shown(const T& value) {
  return fmt::format("{}", value);
}
template <class T>
std::string shown(const std::optional<T>& value) {
  return value ? shown(*value) : "";
}
template <class T>
std::string shown(const std::vector<T>& values) {
  std::string text;
  for (const T& v : values) text += (text.empty() ? "" : ",") + shown(v);
  return text.empty() ? "" : "[" + text + "]";
}

}  // namespace

std::string kind_of(const Member& member) {
  return of_value(member, []<class T>(const T*) { return kind_name<T>(); });
}

bool takes_several(const Member& member) {
  return std::visit([]<class M>(const M&) { return std::is_pointer_v<M> && Value<std::remove_pointer_t<M>>::several; },
                    member);
}

std::string shown_value(const Member& member) {
  return std::visit(
      []<class M>(const M& m) -> std::string {
        if constexpr (std::is_same_v<M, ChosenMember>)
          return std::string(m.unless_given);
        else if constexpr (std::is_same_v<M, std::monostate> || std::is_same_v<M, bool*>)
          return "";
        else
          return shown(*m);
      },
      member);
}

std::string check_value(const Member& member, std::string& value) {
  return of_value(member, [&](const auto* type) { return check_word(value, type); });
}

std::string check_bits(std::string& value) {
  int64_t number = 0;
  if (!value.starts_with('-') || parse_count(value, number) != CountError::kNone)
    return check_word(value, static_cast<const uint64_t*>(nullptr));
  value = std::to_string(static_cast<uint64_t>(number));
  return {};
}

double number_of(std::string_view value) {
  double number = 0;
  std::from_chars(value.data(), value.data() + value.size(), number);
  return number;
}

void fill(const Member& member, const std::vector<std::string>& values) {
  std::visit(
      [&]<class M>(const M& m) {
        if constexpr (std::is_pointer_v<M> && !std::is_same_v<M, bool*>) {
          if constexpr (Value<std::remove_pointer_t<M>>::several) {
            m->clear();
            for (const std::string& v : values) take_word(v, m->emplace_back());
          } else {
            take_word(values.back(), *m);
          }
        }
      },
      member);
}

}  // namespace quire::cli
