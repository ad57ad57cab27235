#include "cli/chat/commands.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <numeric>
#include <utility>

#include "command/help.h"
#include "core/count.h"
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
    {"regen", Kind::kRegen, "", "another answer to the last message, with the next seed"},
    {"edit", Kind::kEdit, "", "change the last message, and have it answered anew"},
    {"read", Kind::kRead, "FILE", "put a file's text before the next message"},
    {"image", Kind::kImage, "FILE", "put a picture before the next message"},
    {"show", Kind::kShow, "[info|template|messages]",
     "the model and what is in use, its chat template, or what was said"},
    {"save", Kind::kSave, "FILE", "keep the conversation in a file"},
    {"load", Kind::kLoad, "FILE", "go on with the conversation of a file"},
};
constexpr std::string_view kTopics[] = {"info", "template", "messages"};  // of /show

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

Status parse_number(std::string_view name, std::string_view value, float& out) {
  float x = 0;
  const char* const end = value.data() + value.size();
  const auto [rest, error] = std::from_chars(value.data(), end, x);
  if (value.empty() || error != std::errc() || rest != end)
    return request_error("/set {}: {} is not a number", name, printable(value));
  out = x;
  return {};
}

// As command lines have it: 8k is 8000.
template <class T>
Status parse_number(std::string_view name, std::string_view value, T& out) {
  using Wide = std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>;
  Wide x{};
  if (parse_count(value, x) != CountError::kNone || !std::in_range<T>(x))
    return request_error("/set {}: {} is not a whole number in range", name, printable(value));
  out = static_cast<T>(x);
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
  each_sampling_field(s.sampling, [&](const SamplingField& field, auto& value) { each(field.name, value); });
  each("seed", s.sampling.seed);
  each("max_tokens", s.max_tokens);
  each("think", s.think);
  each("stats", s.stats);
  each("wrap", s.wrap);
}

// Whether a setting is up to a server where nobody has given it.
bool is_of_request(std::string_view name) {
  return name != "stats" && name != "wrap" && name != "max_tokens";
}

// Files and folders whose path begins as `typed` does.
std::vector<std::string> paths_of(std::string_view typed) {
  namespace fs = std::filesystem;
  constexpr size_t kMost = 10'000;  // entries of a folder that are looked at
  const size_t slash = typed.rfind('/');
  const std::string folder(slash == typed.npos ? "" : typed.substr(0, slash + 1));
  const std::string_view begin = slash == typed.npos ? typed : typed.substr(slash + 1);
  std::vector<std::string> paths;
  std::error_code failed;
  fs::directory_iterator at(folder.empty() ? "." : folder, failed);
  for (size_t i = 0; !failed && at != fs::directory_iterator() && i < kMost; at.increment(failed), ++i) {
    const std::string name = at->path().filename().string();
    if (!name.starts_with(begin) || (begin.empty() && name.starts_with('.'))) continue;
    std::error_code unknown;
    paths.push_back(folder + name + (fs::is_directory(at->path(), unknown) ? "/" : " "));
  }
  return paths;
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
  if (known->kind == Kind::kShow && !argument.empty() &&
      std::find(std::begin(kTopics), std::end(kTopics), argument) == std::end(kTopics))
    return request_error("/show {}: there is nothing of that name; it shows info, template or messages",
                         printable(argument));
  return ChatCommand{known->kind, std::string(argument)};
}

std::string chat_help(int columns) {
  constexpr HelpColumns kColumns{.left = 2, .right = 23};
  std::string lines;
  for (const Known& k : kCommands)
    if (!k.help.empty()) lines += help_entry(fmt::format("/{} {}", k.name, k.argument), k.help, kColumns, columns);
  lines += help_entry(R"(""")", "begin and end a message of several lines", kColumns, columns);
  lines += help_entry("Tab", "complete a command, a setting, a file", kColumns, columns);
  lines += help_entry("Ctrl-C", "clear the line; while an answer comes: stop it", kColumns, columns);
  lines += help_entry("Arrow keys, Ctrl-R", "earlier messages", kColumns, columns);
  lines.pop_back();
  return lines;
}

Completion complete_chat_line(std::string_view line) {
  Completion c;
  if (!line.starts_with('/')) return c;
  const auto offer = [&](std::string_view typed, std::string_view word) {
    if (word.starts_with(typed)) c.words.push_back(fmt::format("{} ", word));
  };
  const size_t blank = line.find(' ');
  if (blank == line.npos) {
    c.typed = line.size();
    for (const Known& k : kCommands) offer(line, fmt::format("/{}", k.name));
  } else {
    const auto* known = std::find_if(std::begin(kCommands), std::end(kCommands),
                                     [&](const Known& k) { return k.name == line.substr(1, blank - 1); });
    if (known == std::end(kCommands)) return c;
    std::string_view typed = line.substr(blank);
    typed.remove_prefix(std::min(typed.find_first_not_of(' '), typed.size()));
    c.typed = typed.size();
    if (known->argument == "FILE") c.words = paths_of(typed);
    const ChatSettings all;
    if (known->kind == Kind::kSet)
      for_each_setting(all, [&](std::string_view name, const auto&) { offer(typed, name); });
    if (known->kind == Kind::kShow)
      for (const std::string_view topic : kTopics) offer(typed, topic);
  }
  std::sort(c.words.begin(), c.words.end());
  return c;
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
  if (changed.max_tokens < 1 && changed.max_tokens != -1)
    return request_error("/set max_tokens: must be at least 1, or -1 for until the answer or the context ends");
  QUIRE_CHECKED(changed.sampling.validate(vocab_size));
  changed.given.insert(std::string(name));
  if (changed.think != think)
    (changed.think ? thinking : plain).each(changed.sampling, [&](const SamplingField& field, auto wanted, auto& to) {
      if (!given.contains(std::string(field.name))) to = wanted;
    });
  *this = std::move(changed);
  return {};
}

std::string ChatSettings::list() const {
  std::string lines;
  for_each_setting(*this, [&](std::string_view name, const auto& value) {
    if (server && is_of_request(name) && !given.contains(std::string(name)))
      lines += fmt::format("  {:<20} as the server chooses\n", name);
    else if constexpr (std::is_same_v<std::remove_cvref_t<decltype(value)>, bool>)
      lines += fmt::format("  {:<20} {}\n", name, value ? "on" : "off");
    else
      lines += fmt::format("  {:<20} {}\n", name, value);
  });
  lines.pop_back();
  return lines;
}

}  // namespace quire::cli
