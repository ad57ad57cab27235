#include "command/flags.h"

#include <fmt/format.h>

#include <algorithm>

#include "command/flag_values.h"

namespace quire::cli {
namespace {

// The parts of "-m,--model,MODEL".
std::vector<std::string> split_names(const std::string& names) {
  std::vector<std::string> parts;
  for (size_t at = 0; at < names.size();) {
    const size_t end = std::min(names.find(',', at), names.size());
    parts.push_back(names.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

bool same_but_case(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](char x, char y) { return lower(x) == lower(y); });
}

bool is_called(const ChosenMember::Name& choice, std::string_view word) {
  if (same_but_case(choice.name, word)) return true;
  for (std::string_view rest = choice.also; !rest.empty();) {
    const std::string_view name = rest.substr(0, rest.find(' '));
    if (same_but_case(name, word)) return true;
    rest.remove_prefix(std::min(rest.size(), name.size() + 1));
  }
  return false;
}

}  // namespace

std::string joined_with_or(std::span<const std::string_view> words) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : i + 1 == words.size() ? " or " : ", ", words[i]);
  return text;
}

// ---- Ranges ----

Range between(double least, double most, std::string unit) {
  return {.least = least, .most = most, .unit = std::move(unit), .other = {}, .meaning = {}};
}

Range at_least(double least) {
  return between(least, std::numeric_limits<double>::infinity());
}

Range above(double bound, double most, std::string unit) {
  Range range = between(bound, most, std::move(unit));
  range.above_least = true;
  return range;
}

Range Range::or_else(double other_value, std::string what_it_means) const {
  Range range = *this;
  range.other = other_value;
  range.meaning = std::move(what_it_means);
  return range;
}

bool Range::has(double value) const {
  if (other && value == *other) return true;
  return (above_least ? value > least : value >= least) && value <= most;
}

std::string Range::text() const {
  const bool bounded = most < std::numeric_limits<double>::infinity();
  std::string text = above_least ? fmt::format("above {} and at most {}", least, most)
                     : bounded   ? fmt::format("between {} and {}", least, most)
                                 : fmt::format("at least {}", least);
  if (!unit.empty()) text += " " + unit;
  if (other) text += fmt::format(", or {} for {}", *other, meaning);
  return text;
}

// ---- A flag ----

Flag::Flag(const std::string& names, Member member, std::string help, std::string group)
    : declared_(names.substr(0, names.find(' '))), member_(std::move(member)) {
  for (const std::string& part : split_names(declared_)) {
    const std::string name = part.substr(part.starts_with('!') ? 1 : 0);
    (name.starts_with('-') ? row_.names.emplace_back() : row_.position) = name;
  }
  row_.help = std::move(help);
  row_.group = std::move(group);
  row_.takes = declared_.size() < names.size() ? names.substr(declared_.size() + 1) : kind_of(member_);
  row_.default_text = shown_value(member_);
  if (!takes_several(member_)) return;
  row_.most_words = FlagRow::kAnyNumber;
  row_.separated = kind_of(member_) != "TEXT";
}

Flag& Flag::required(bool is) {
  row_.required = is;
  return *this;
}

Flag& Flag::default_text(std::string text) {
  row_.default_text = std::move(text);
  return *this;
}

Flag& Flag::range(Range range) {
  row_.range = std::move(range);
  return *this;
}

Flag& Flag::range_in_help() {
  return more_help("; " + row_.range->text());
}

Flag& Flag::needs(std::string name) {
  row_.needed = std::move(name);
  return *this;
}

Flag& Flag::words(int least, int most) {
  row_.least_words = least;
  row_.most_words = most;
  return *this;
}

Flag& Flag::separated() {
  row_.separated = true;
  return *this;
}

Flag& Flag::lists() {
  row_.lists = true;
  return *this;
}

Flag& Flag::any_bits() {
  row_.any_bits = true;
  return *this;
}

Flag& Flag::may_be_empty() {
  row_.may_be_empty = true;
  return *this;
}

Flag& Flag::more_help(std::string_view text) {
  row_.help += text;
  return *this;
}

std::vector<std::string_view> Flag::choices() const {
  std::vector<std::string_view> names;
  if (const auto* const list = std::get_if<ChosenMember>(&member_))
    for (const ChosenMember::Name& n : list->names) names.push_back(n.name);
  return names;
}

bool Flag::has_name(std::string_view name) const {
  return std::find(row_.names.begin(), row_.names.end(), name) != row_.names.end();
}

const std::string& Flag::name() const {
  for (const std::string& name : row_.names)
    if (name.starts_with("--")) return name;
  return row_.names.empty() ? row_.position : row_.names.front();
}

std::string Flag::check(std::string& value) const {
  if (row_.any_bits) return check_bits(value);
  if (row_.may_be_empty && value.empty()) return {};
  return check_value(member_, value);
}

Status Flag::set(std::vector<std::string> values) {
  values_ = std::move(values);
  given_ = !values_.empty();
  if (!given_) return {};
  const auto refuse = [this](const auto& value, const std::string& what) {
    return request_error("{} {}: must be {}", name(), value, what);
  };
  if (const auto* const list = std::get_if<ChosenMember>(&member_)) {
    const std::string& word = values_.back();
    const auto found = std::ranges::find_if(list->names, [&](const auto& choice) { return is_called(choice, word); });
    if (found == list->names.end()) return refuse(word, joined_with_or(choices()));
    list->choose(static_cast<size_t>(found - list->names.begin()));
    return {};
  }
  if (row_.range)
    for (const std::string& value : values_)
      if (!row_.range->has(number_of(value))) return refuse(value, row_.range->text());
  fill(member_, values_);
  return {};
}

// ---- Rows ----

Flags::Flags(std::string name, std::string summary) : name_(std::move(name)), summary_(std::move(summary)) {
  add(kHelpNames, {}, "Print this help message and exit");
}

Flag& Flags::add(const std::string& names, Member member, std::string help) {
  return rows_.emplace_back(names, std::move(member), std::move(help), group_);
}

Flag& Flags::add(const std::string& names, Member member, Range range, std::string help) {
  return add(names, std::move(member), std::move(help)).range(std::move(range));
}

Flag* Flags::find(std::string_view name) {
  const auto found =
      std::ranges::find_if(rows_, [&](const Flag& flag) { return flag.has_name(name) || flag.row().position == name; });
  return found == rows_.end() || name.empty() ? nullptr : &*found;
}

const Flag* Flags::find(std::string_view name) const {
  return const_cast<Flags*>(this)->find(name);
}

}  // namespace quire::cli
