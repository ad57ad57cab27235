#include "constraint/schema_scalars.h"

#include <fmt/format.h>

#include <algorithm>

#include "constraint/pattern_reader.h"
#include "constraint/schema_refs.h"
#include "constraint/string_pattern.h"

namespace quire::schema {
namespace {

constexpr int64_t kMostMultiple = 4096;  // a rule of the grammar for each remainder

}  // namespace

std::optional<std::string> pattern_in(const std::string& pattern, std::string_view keyword, const std::string& path,
                                      const Note& note) {
  std::variant<std::string, PatternProblem> read = canonical_pattern(pattern);
  if (auto* const canonical = std::get_if<std::string>(&read)) return std::move(*canonical);
  const PatternProblem& problem = std::get<PatternProblem>(read);
  if (!problem.is_unsupported)
    throw Refused{fmt::format("{}: {} is no regular expression: {}", path, keyword, problem.what)};
  note(fmt::format("{} ({})", keyword, problem.what));
  return std::nullopt;
}

void finish_string(const Json& plain, const std::string& path, Json& to, const Note& note,
                   std::vector<std::string>& shapes) {
  for (const char* key : {"minLength", "maxLength"})
    if (const auto n = whole(plain, key)) to[key] = *n;
  for (const char* key : {"pattern", "format"})
    if (plain.contains(key)) to[key] = plain[key];
  if (to.contains("pattern")) {
    if (!to["pattern"].is_string()) throw Refused{path + ": 'pattern' must be a string"};
    std::optional<std::string> canonical = pattern_in(to["pattern"].get<std::string>(), "'pattern'", path, note);
    if (canonical)
      to["pattern"] = std::move(*canonical);
    else
      to.erase("pattern");
  }
  if (to.contains("format")) {
    const std::string format = to["format"].is_string() ? to["format"].get<std::string>() : "";
    if (to.contains("pattern") || to.contains("minLength") || to.contains("maxLength") || !has_format(format)) {
      to.erase("format");
      if (asserts_format(format)) note(fmt::format("'format' {}", pointer_step(format)));
    } else if (!is_exact_format(format) && std::find(shapes.begin(), shapes.end(), format) == shapes.end()) {
      shapes.push_back(format);
    }
  }
  if (!to.contains("pattern") || !(to.contains("minLength") || to.contains("maxLength"))) return;
  const std::optional<std::string> both =
      pattern_of_length(to["pattern"].get<std::string>(), whole(to, "minLength"), whole(to, "maxLength"));
  if (both)
    to["pattern"] = *both;
  else
    note("'minLength' and 'maxLength' beside 'pattern'");
  to.erase("minLength");
  to.erase("maxLength");
}

std::optional<int64_t> whole(const Json& s, const char* key) {
  if (!s.contains(key) || !s[key].is_number()) return std::nullopt;
  return static_cast<int64_t>(std::clamp(s[key].get<double>(), 0.0, 1e9));
}

void finish_number(const Json& plain, const std::string& path, Json& to, const Note& note) {
  for (const char* key : {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
    if (plain.contains(key)) to[key] = plain[key];
  // Older drafts: a flag that says how the limit is meant.
  for (const auto& [flag, limit] : {std::pair{"exclusiveMinimum", "minimum"}, {"exclusiveMaximum", "maximum"}}) {
    if (!to.contains(flag) || !to[flag].is_boolean()) continue;
    const bool set = to[flag] == true && to.contains(limit);
    to.erase(flag);
    if (set) to[flag] = to[limit];
    if (set) to.erase(limit);
  }
  if (!to.contains("multipleOf")) return;
  const Json multiple = to["multipleOf"];
  const bool is_whole = multiple.is_number() && type_of_value(multiple) == "integer";
  const double m = multiple.is_number() ? multiple.get<double>() : 0;
  if (!(m > 0)) throw Refused{path + ": 'multipleOf' must be a number above 0"};
  const bool low = to.contains("minimum") || to.contains("exclusiveMinimum"),
             high = to.contains("maximum") || to.contains("exclusiveMaximum");
  if (is_whole && m <= static_cast<double>(kMostMultiple) && low == high) {
    to["type"] = "integer";
    to["multipleOf"] = static_cast<int64_t>(m);
    if (m == 1) to.erase("multipleOf");
  } else {
    // Halves, tenths and the like of whole numbers are whole.
    if (to["type"] != "integer" || (m != 0.5 && m != 0.25 && m != 0.1 && m != 0.01 && m != 0.001)) note("'multipleOf'");
    to.erase("multipleOf");
  }
}

bool allows(const Json& plain, const Json& value, const Note& note) {
  const std::string_view type = type_of_value(value);
  if (plain.contains("type")) {
    const Json types = plain["type"].is_array() ? plain["type"] : Json::array({plain["type"]});
    if (std::none_of(types.begin(), types.end(),
                     [&](const Json& t) { return t.is_string() && type_takes(t.get<std::string>(), type); }))
      return plain.contains("nullable") && plain["nullable"] == true && value.is_null();
  }
  for (const auto& [key, limit] : plain.items()) {
    const std::string_view of = type_of_keyword(key);
    if (of.empty() || !type_takes(of, type)) continue;
    if (limit.is_number() && value.is_number()) {
      const double x = value.get<double>(), l = limit.get<double>();
      if (key == "minimum" && x < l) return false;
      if (key == "maximum" && x > l) return false;
      if (key == "exclusiveMinimum" && x <= l) return false;
      if (key == "exclusiveMaximum" && x >= l) return false;
      if (key == "multipleOf") note("'multipleOf' beside 'enum'");
    } else if (limit.is_number() && value.is_string() && (key == "minLength" || key == "maxLength")) {
      const auto& text = value.get_ref<const std::string&>();
      const auto length = std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; });
      if (key == "minLength" && static_cast<double>(length) < limit.get<double>()) return false;
      if (key == "maxLength" && static_cast<double>(length) > limit.get<double>()) return false;
    } else {
      note(fmt::format("'{}' beside 'enum'", key));
    }
  }
  return true;
}

}  // namespace quire::schema
