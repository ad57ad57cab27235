#include "cli/chat/commands.h"

#include <algorithm>
#include <charconv>
#include <numeric>
#include <vector>

#include "gguf/metadata.h"

namespace quire::cli {
namespace {

using gguf::printable;
using Kind = ChatCommand::Kind;

struct Known {
  std::string_view name;
  Kind kind;
  std::string_view argument, help;  // no help: another name of the one before
};
constexpr Known kCommands[] = {
    {"help", Kind::kHelp, "", "this list"},
    {"?", Kind::kHelp, "", ""},
    {"bye", Kind::kBye, "", "end (also Ctrl-D)"},
    {"exit", Kind::kBye, "", ""},
    {"quit", Kind::kBye, "", ""},
    {"clear", Kind::kClear, "", "forget what was said; the system message stays"},
    {"system", Kind::kSystem, "[TEXT]", "show the system message, or set it; \"\" for none"},
    {"set", Kind::kSet, "[NAME VALUE]", "show what can be set, or set it: /set temperature 0.7"},
    {"save", Kind::kSave, "FILE", "keep the conversation in a file"},
    {"load", Kind::kLoad, "FILE", "go on with the conversation of a file"},
};

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\n";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

// Levenshtein's distance: single letters put in, left out or changed.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t changed = diagonal + (a[i] != b[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

Error unknown_command(std::string_view name) {
  const auto* nearest = std::min_element(std::begin(kCommands), std::end(kCommands), [&](auto& a, auto& b) {
    return distance(name, a.name) < distance(name, b.name);
  });
  const std::string hint =
      name.size() < 20 && distance(name, nearest->name) <= 2 ? fmt::format(" (did you mean /{}?)", nearest->name) : "";
  return request_error("there is no command {}{}; /help lists them (a space before the slash makes it a message)",
                       printable(fmt::format("/{}", name)), hint);
}

template <class T>
Status parse_number(std::string_view name, std::string_view value, T& out) {
  T x{};
  const char* const end = value.data() + value.size();
  const auto [rest, error] = std::from_chars(value.data(), end, x);
  if (value.empty() || error != std::errc() || rest != end)
    return request_error("/set {}: {} is not {}", name, printable(value),
                         std::is_floating_point_v<T> ? "a number" : "a whole number in range");
  out = x;
  return {};
}

Status parse_switch(std::string_view name, std::string_view value, bool& out) {
  if (value != "on" && value != "off") return request_error("/set {}: write on or off", name);
  out = value == "on";
  return {};
}

// Calls `each(name, reference to the value)` for everything that can be set.
template <class Settings, class Each>
void for_each_setting(Settings& s, Each each) {
  each("temperature", s.sampling.temperature);
  each("top_k", s.sampling.top_k);
  each("top_p", s.sampling.top_p);
  each("min_p", s.sampling.min_p);
  each("typical_p", s.sampling.typical_p);
  each("repetition_penalty", s.sampling.repetition_penalty);
  each("presence_penalty", s.sampling.presence_penalty);
  each("frequency_penalty", s.sampling.frequency_penalty);
  each("seed", s.sampling.seed);
  each("max_tokens", s.max_tokens);
  each("think", s.think);
  each("stats", s.stats);
}

}  // namespace

Result<ChatCommand> parse_chat_command(std::string_view text) {
  if (!text.starts_with('/')) return ChatCommand{Kind::kMessage, std::string(text)};
  const size_t end = std::min(text.find_first_of(" \t\n"), text.size());
  const std::string_view name = text.substr(1, end - 1), argument = trimmed(text.substr(end));
  const auto* known =
      std::find_if(std::begin(kCommands), std::end(kCommands), [&](const Known& k) { return k.name == name; });
  if (known == std::end(kCommands)) return unknown_command(name);
  if (known->argument.empty() && !argument.empty()) return request_error("/{} takes nothing behind it", name);
  if (!known->argument.empty() && !known->argument.starts_with('[') && argument.empty())
    return request_error("/{}: {} is missing", name, known->argument);
  return ChatCommand{known->kind, std::string(argument)};
}

std::string chat_help() {
  std::string lines;
  for (const Known& k : kCommands)
    if (!k.help.empty()) lines += fmt::format("  {:<20} {}\n", fmt::format("/{} {}", k.name, k.argument), k.help);
  return lines +
         "  \"\"\"                  begin and end a message of several lines\n"
         "  Ctrl-C               clear the line; while an answer comes: stop it\n"
         "  Arrow keys, Ctrl-R   earlier messages";
}

Status ChatSettings::set(std::string_view assignment, int64_t vocab_size) {
  const size_t end = std::min(assignment.find_first_of(" \t="), assignment.size());
  const std::string_view name = assignment.substr(0, end);
  std::string_view value = trimmed(assignment.substr(end));
  if (value.starts_with('=')) value = trimmed(value.substr(1));
  ChatSettings changed = *this;
  bool known = false;
  Status status;
  for_each_setting(changed, [&](std::string_view setting, auto& out) {
    if (setting != name) return;
    known = true;
    if constexpr (std::is_same_v<std::remove_reference_t<decltype(out)>, bool>)
      status = parse_switch(name, value, out);
    else
      status = parse_number(name, value, out);
  });
  if (!known) return request_error("/set {}: there is no such setting; /set lists them", printable(name));
  QUIRE_CHECKED(std::move(status));
  if (changed.max_tokens < 1) return request_error("/set max_tokens: must be at least 1");
  QUIRE_CHECKED(changed.sampling.validate(vocab_size));
  *this = std::move(changed);
  return {};
}

std::string ChatSettings::list() const {
  std::string lines;
  for_each_setting(*this, [&](std::string_view name, const auto& value) {
    if constexpr (std::is_same_v<std::remove_cvref_t<decltype(value)>, bool>)
      lines += fmt::format("  {:<20} {}\n", name, value ? "on" : "off");
    else
      lines += fmt::format("  {:<20} {}\n", name, value);
  });
  lines.pop_back();
  return lines;
}

}  // namespace quire::cli
