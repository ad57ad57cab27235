#include "cli/arguments.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>
#include <optional>
#include <span>

#include "cli/command.h"
#include "cli/foreign_options.h"
#include "core/count.h"
#include "core/escape.h"

namespace quire::cli {
namespace {

// ---- Values ----

// Returns what is wrong with it, or nothing: CLI11's form of a check.
template <class T>
std::string check_integer(std::string& text) {
  T value{};
  switch (parse_count(text, value)) {
    case CountError::kNotWhole:
      return fmt::format("'{}' is not a whole number", escaped(text, 60));
    case CountError::kOutOfRange:
      return fmt::format("{} is out of range", escaped(text, 60));
    case CountError::kNone:
      break;
  }
  text = std::to_string(value);  // without the zeros that would make it octal, and without a letter
  return {};
}

// Any 64 bits: -1 is the largest number.
std::string check_bits(std::string& text) {
  int64_t value = 0;
  if (!text.starts_with('-') || parse_count(text, value) != CountError::kNone) return check_integer<uint64_t>(text);
  text = std::to_string(static_cast<uint64_t>(value));
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

// ---- Names ----

struct Spelling {
  std::string_view command, brief, full;
};
// Short options of several letters, which CLI11 does not know: it would read -np 4 as -n with the value p.
constexpr Spelling kSpellings[] = {{"serve", "-np", "--parallel"},   {"bench-batch", "-npp", "--npp"},
                                   {"bench-batch", "-ntg", "--ntg"}, {"bench-batch", "-npl", "--npl"},
                                   {"profile", "-npp", "--npp"},     {"profile", "-ntg", "--ntg"},
                                   {"profile", "-npl", "--npl"}};

// Options that take several words at once. Of all others each value has the option's name before it, so that a model or
// a prompt may follow.
constexpr Spelling kLists[] = {{"serve", "-a", "--served-model-name"}, {"imatrix", "--merge", "--merge"}};

bool is_list(const CLI::App& command, const CLI::Option& option) {
  return std::any_of(std::begin(kLists), std::end(kLists), [&](const Spelling& s) {
    return command.get_name() == s.command && option.check_name(std::string(s.full));
  });
}

// Whether CLI11 takes it for an option: "-5" and "- item" are none.
bool is_option_like(std::string_view a) {
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); };
  const size_t dashes = a.starts_with("--") ? 2 : 1;
  return a.starts_with('-') && a.size() > dashes && is_letter(a[dashes]);
}

// --max_model_len=8k is --max-model-len=8k.
std::string with_dashes(const std::string& a) {
  if (!a.starts_with("--")) return a;
  std::string out = a;
  std::replace(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(std::min(a.find('='), a.size())), '_', '-');
  return out;
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
  const size_t dashes = std::min(word.find_first_not_of('-'), word.size()), letters = word.size() - dashes;
  if (word.size() > 40) return best;
  size_t least = letters < 6 ? 2 : 3;
  for (const std::string& c : candidates) {
    const size_t n = edits_between(word, c);
    if (n >= least) continue;
    least = n;
    best = c;
  }
  if (!best.empty() || letters < 5) return best;
  // "--max-token" and "--temperatur" are near; "--penalty" is a part.
  for (const std::string& c : candidates)
    if (c.find(word.substr(dashes)) != std::string::npos) return c;
  return best;
}

std::vector<std::string_view> brief_names(std::string_view command, std::string_view option) {
  std::vector<std::string_view> names;
  for (const Spelling& s : kSpellings)
    if (s.command == command && s.full == option) names.push_back(s.brief);
  return names;
}

void check_values(CLI::App& command) {
  for (CLI::Option* const option : command.get_options()) {
    if (option->get_items_expected_max() == 0) continue;  // a flag
    if (!option->get_positional()) option->allow_extra_args(false);
    // Given twice, the last one counts, as in other programs: a script's own value behind one of a variable.
    if (option->get_items_expected_max() == 1) option->take_last();
    const std::string type = option->get_type_name().substr(0, option->get_type_name().find(':'));
    std::string (*check)(std::string&) = check_text;
    if (type == "INT") check = check_integer<int64_t>;
    if (type == "UINT") check = check_integer<uint64_t>;
    if (type == "FLOAT") check = check_real;
    if (type == "UINT" && option->check_lname("seed")) check = check_bits;
    if (check == check_text && may_be_empty(command, *option)) continue;
    option->transform(CLI::Validator(check, "", "value"));
  }
}

namespace {

// Goes through what follows a command's name as CLI11 will, which knows one program's options only.
class Walk {
 public:
  Walk(const CLI::App& app, const CLI::App& command) : app_(app), command_(command) {}

  // `leave_model`: the last word of a list of several is the model and not one of the list.
  Status go(std::span<const std::string> given, bool leave_model) {
    for (size_t i = 0; i < given.size();) {
      if (given[i] == "--") {
        rest_.insert(rest_.end(), given.begin() + static_cast<std::ptrdiff_t>(i), given.end());
        break;
      }
      if (!is_option_like(given[i])) {
        ++words_;
        rest_.push_back(given[i++]);
        continue;
      }
      QUIRE_TRY(const size_t taken, take_option(given.subspan(i), leave_model));
      i += taken;
    }
    if (!foreign_.empty()) return request_error("{}", foreign_);
    return {};
  }

  // The model stands first, wherever it was, so that what is given by position is what follows it.
  std::vector<std::string> result() && {
    model_.insert(model_.end(), std::make_move_iterator(rest_.begin()), std::make_move_iterator(rest_.end()));
    return std::move(model_);
  }
  bool lacks_model() const {
    const CLI::Option* const model = command_.get_option_no_throw("--model");
    return model != nullptr && model->get_positional() && model->get_required() && model_.empty() && words_ == 0;
  }

 private:
  const CLI::Option* find(const std::string& name) const {
    const CLI::Option* const option = command_.get_option_no_throw(name);
    return option != nullptr ? option : app_.get_option_no_throw(name);
  }

  // How many of the arguments it was.
  Result<size_t> take_option(std::span<const std::string> given, bool leave_model) {
    std::string first = with_dashes(given[0]);
    for (const Spelling& s : kSpellings)
      if (command_.get_name() == s.command && first == s.brief) first = s.full;
    const std::string name = first.substr(0, first.find('='));
    const CLI::Option* const option = find(name);
    if (option == nullptr) {
      QUIRE_CHECKED(take_unknown(name));
      rest_.push_back(std::move(first));
      return 1;
    }
    const bool is_flag = option->get_items_expected_max() == 0;
    const bool is_model = option->get_positional() && option->check_lname("model");
    std::vector<std::string>& to = is_model ? model_ : rest_;
    if (name.size() < first.size() && !name.starts_with("--")) {
      to.insert(to.end(), {name, first.substr(name.size() + 1)});  // -c=8k, which CLI11 reads as the value =8k
      return 1;
    }
    to.push_back(first);
    if (is_flag || name.size() < first.size() || given.size() < 2) return 1;
    to.push_back(given[1]);
    return is_list(command_, *option) ? take_list(given, name, leave_model) : 2;
  }

  size_t take_list(std::span<const std::string> given, const std::string& name, bool leave_model) {
    size_t end = 2;
    while (end < given.size() && !is_option_like(given[end])) ++end;
    const bool leave = leave_model && end > 2;
    for (size_t i = 2; i < end - (leave ? 1 : 0); ++i) {
      rest_.push_back(name);
      rest_.push_back(given[i]);
    }
    return leave ? end - 1 : end;
  }

  // CLI11 reads -tp 2 as -t with the value p. A number may follow its letter (-c4096), and nothing else.
  Status take_unknown(const std::string& name) {
    const std::string& command = command_.get_name();
    if (const ForeignOption* const o = find_foreign(command, name); o != nullptr) {
      foreign_ += fmt::format("{}{} is an option of {}: {}", foreign_.empty() ? "" : "; ", escaped(name, 60),
                              o->program, o->instead);
      return {};
    }
    if (name.starts_with("--") || name.size() < 3) return {};
    const CLI::Option* const brief = find(name.substr(0, 2));
    if (brief != nullptr && brief->get_items_expected_max() > 0 && name.find_first_not_of("0123456789.-", 2) > 2)
      return {};
    return request_error(
        "{} has no option {}{}; see quire help {}", command, escaped(name, 60),
        brief == nullptr ? ""
                         : fmt::format(" (write a value apart: {} {})", name.substr(0, 2), escaped(name.substr(2), 60)),
        command);
  }

  const CLI::App& app_;
  const CLI::App& command_;
  std::vector<std::string> model_, rest_;  // -m and its value; everything else
  std::string foreign_;                    // options of other programs, with what to write instead
  size_t words_ = 0;                       // that stand by themselves
};

}  // namespace

Result<std::vector<std::string>> prepared_arguments(const CLI::App& app, std::vector<std::string> arguments) {
  // The first that is no option names the command: CLI11 would only say that one is required.
  size_t at = 0;
  for (; at < arguments.size() && arguments[at].starts_with("-"); ++at) {
    arguments[at] = with_dashes(arguments[at]);
    if (arguments[at] == "--log-level" || arguments[at] == "--cpu") ++at;  // its value
  }
  if (at >= arguments.size()) return arguments;
  if (arguments[at] == "help") {
    arguments.erase(arguments.begin() + static_cast<std::ptrdiff_t>(at));
    if (at < arguments.size()) QUIRE_CHECKED(check_command(arguments[at]));
    arguments.emplace_back("--help");
    return arguments;
  }
  QUIRE_CHECKED(check_command(arguments[at]));
  const CLI::App& command = *app.get_subcommand(arguments[at]);
  const std::span<const std::string> given = std::span<const std::string>(arguments).subspan(at + 1);
  std::optional<Walk> walk(std::in_place, app, command);
  QUIRE_CHECKED(walk->go(given, false));
  if (walk->lacks_model()) {
    walk.emplace(app, command);
    QUIRE_CHECKED(walk->go(given, true));
  }
  std::vector<std::string> rest = std::move(*walk).result();
  arguments.resize(at + 1);
  arguments.insert(arguments.end(), std::make_move_iterator(rest.begin()), std::make_move_iterator(rest.end()));
  return arguments;
}

std::string complaint(const CLI::App& app, const CLI::ParseError& e) {
  const auto* const unexpected = dynamic_cast<const CLI::ExtrasError*>(&e);
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  const std::string what = e.what();
  if (!chosen.empty() && dynamic_cast<const CLI::RequiredError*>(&e) != nullptr && what.starts_with("--model"))
    return fmt::format("give a model: quire {} FILE", chosen.front()->get_name());
  if (unexpected == nullptr || chosen.empty()) return what;
  const std::vector<std::string> rest = app.remaining(true);
  if (rest.empty()) return what;
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
