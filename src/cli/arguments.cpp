#include "cli/arguments.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

#include "cli/command.h"
#include "core/escape.h"

namespace quire::cli {
namespace {

// ---- Values ----

// Returns what is wrong with it, or nothing: CLI11's form of a check.
template <class T>
std::string check_integer(std::string& text) {
  T value{};
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc::result_out_of_range && rest == end)
    return fmt::format("{} is out of range", escaped(text, 60));
  if (error != std::errc{} || rest != end)
    return fmt::format("'{}' is not a whole number", escaped(text, 60));
  text = std::to_string(value);  // without the zeros that would make it octal
  return {};
}

std::string check_real(std::string& text) {
  double value = 0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc::result_out_of_range && rest == end)
    return fmt::format("{} is out of range", escaped(text, 60));
  if (error != std::errc{} || rest != end || !std::isfinite(value))
    return fmt::format("'{}' is not a number", escaped(text, 60));
  return {};
}

std::string check_text(std::string& text) {
  return text.empty() ? "is empty; give a value, or leave the option out" : "";
}

// The empty text has tokens (none, or those around every text); an empty system message is one.
bool may_be_empty(const CLI::App& command, const CLI::Option& option) {
  const std::string& c = command.get_name();
  return (c == "tokenize" && option.check_lname("prompt")) || (c == "run" && option.check_lname("system"));
}

// ---- Words of other programs ----

struct Spelling {
  std::string_view command, brief, full;
};
// CLI11 would read -np 4 as -n with the value p.
constexpr Spelling kSpellings[] = {{"serve", "-np", "--parallel"},   {"bench-batch", "-npp", "--npp"},
                                   {"bench-batch", "-ntg", "--ntg"}, {"bench-batch", "-npl", "--npl"},
                                   {"profile", "-npp", "--npp"},     {"profile", "-ntg", "--ntg"},
                                   {"profile", "-npl", "--npl"}};

struct Habit {
  std::vector<std::string_view> options;
  std::string_view instead;
};
const std::vector<Habit>& habits() {
  static const std::vector<Habit> list = {
      {{"-ngl", "--n-gpu-layers", "--gpu-layers"},
       "a model runs on one device as a whole: --device cuda for the GPU"},
      {{"-fa", "--flash-attn"}, "attention always runs in pieces; leave it out"},
      {{"-ctk", "-ctv", "--cache-type-k", "--cache-type-v"},
       "keys and values have one type: --kv-cache-dtype bf16 or fp8"},
      {{"-ub", "--ubatch-size"}, "--batch-tokens says how many tokens a step computes"},
      {{"-cnv", "--conversation"},
       "without a prompt `quire run` at a terminal is a conversation; --chat for one question"},
      {{"-no-cnv", "--no-conversation"}, "--raw continues a text without the chat template"},
      {{"-sys", "--system-prompt"}, "write --system"},
      {{"-tb", "--threads-batch"}, "--threads counts for prompts and generation"},
      {{"--mlock", "--no-mmap"}, "weights are always mapped and never locked; leave it out"},
      {{"-hf", "-hfr", "--hf-repo", "-mu", "--model-url"}, "models are not downloaded; give a file with -m"},
      {{"-sm", "--split-mode", "-ts", "--tensor-split", "-mg", "--main-gpu"}, "a model runs on one device"},
      {{"--samplers", "--sampling-seq", "--mirostat", "--dry-multiplier", "--xtc-probability"},
       "there is no such sampler; `quire help run` lists those that there are"},
      {{"--lora", "--control-vector", "--mmproj", "--grammar", "--grammar-file", "-j", "--json-schema"},
       "there is nothing like it here"},
  };
  return list;
}

std::vector<std::string> command_list() {
  std::vector<std::string> names;
  for (const Command& c : commands()) names.emplace_back(c.name);
  return names;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& w : words) text += (text.empty() ? "" : ", ") + w;
  return text;
}

Status check_command(const std::string& name) {
  const std::vector<std::string> known = command_list();
  if (std::find(known.begin(), known.end(), name) != known.end()) return {};
  const std::string_view meant = nearest(name, known);
  return request_error("there is no command '{}'{}; there are {}", escaped(name, 100),
                       meant.empty() ? "" : fmt::format(", did you mean {}", meant), joined(known));
}

// Of the edits that typing makes: letters added, left out, replaced, and neighbours exchanged.
size_t edits_between(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i)
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        d[i][j] = i + j;
        continue;
      }
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
    }
  return d[a.size()][b.size()];
}

std::vector<std::string> long_options(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* o : app.get_options())
    for (const std::string& name : o->get_lnames()) names.push_back("--" + name);
  return names;
}

}  // namespace

std::string_view nearest(std::string_view word, const std::vector<std::string>& candidates) {
  std::string_view best;
  if (word.size() > 40) return best;
  size_t least = word.size() < 6 ? 2 : 3;
  for (const std::string& c : candidates) {
    const size_t n = edits_between(word, c);
    if (n >= least) continue;
    least = n;
    best = c;
  }
  if (!best.empty()) return best;
  // "--max-token" and "--temperatur" are near; "--penalty" is a part.
  for (const std::string& c : candidates)
    if (word.size() >= 5 && c.find(word.substr(word.find_first_not_of('-'))) != std::string::npos) return c;
  return best;
}

void check_values(CLI::App& command) {
  for (CLI::Option* const option : command.get_options()) {
    if (option->get_items_expected_max() == 0) continue;  // a flag
    const std::string type = option->get_type_name().substr(0, option->get_type_name().find(':'));
    std::string (*check)(std::string&) = check_text;
    if (type == "INT") check = check_integer<int64_t>;
    if (type == "UINT") check = check_integer<uint64_t>;
    if (type == "FLOAT") check = check_real;
    if (check == check_text && may_be_empty(command, *option)) continue;
    option->transform(CLI::Validator(check, "", "value"));
  }
}

Result<std::vector<std::string>> prepared_arguments(std::vector<std::string> arguments) {
  // The first that is no option names the command: CLI11 would only say that one is required.
  size_t at = 0;
  for (; at < arguments.size() && arguments[at].starts_with("-"); ++at)
    if (arguments[at] == "--log-level" || arguments[at] == "--cpu") ++at;  // its value
  if (at >= arguments.size()) return arguments;
  if (arguments[at] == "help") {
    arguments.erase(arguments.begin() + static_cast<std::ptrdiff_t>(at));
    if (at < arguments.size()) QUIRE_CHECKED(check_command(arguments[at]));
    arguments.emplace_back("--help");
    return arguments;
  }
  QUIRE_CHECKED(check_command(arguments[at]));
  for (const Spelling& s : kSpellings)
    if (arguments[at] == s.command)
      for (std::string& a : arguments)
        if (a == s.brief) a = s.full;
  return arguments;
}

Status check_habits(const CLI::App& command, const std::vector<std::string>& arguments) {
  for (const std::string& a : arguments) {
    const std::string name = a.substr(0, a.find('='));
    if (command.get_option_no_throw(name) != nullptr) continue;
    for (const Habit& h : habits())
      if (std::find(h.options.begin(), h.options.end(), name) != h.options.end())
        return request_error("{} is an option of llama.cpp: {}", name, h.instead);
  }
  return {};
}

std::string complaint(const CLI::App& app, const CLI::ParseError& e) {
  const auto* const unexpected = dynamic_cast<const CLI::ExtrasError*>(&e);
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  if (unexpected == nullptr || chosen.empty()) return e.what();
  const std::vector<std::string> rest = app.remaining(true);
  if (rest.empty()) return e.what();
  const std::string name = rest.front().substr(0, rest.front().find('='));
  const std::string command = chosen.front()->get_name();
  if (!name.starts_with("-"))
    return fmt::format("{} takes no further argument, but there is '{}'; see quire help {}", command,
                       escaped(rest.front(), 60), command);
  std::vector<std::string> known = long_options(*chosen.front());
  for (std::string& option : long_options(app)) known.push_back(std::move(option));
  const std::string_view meant = nearest(name, known);
  return fmt::format("{} has no option {}{}; see quire help {}", command, escaped(name, 60),
                     meant.empty() ? "" : fmt::format(", did you mean {}", meant), command);
}

}  // namespace quire::cli
