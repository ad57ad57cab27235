#include "command/arguments.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <optional>

#include "command/foreign_options.h"
#include "core/escape.h"

namespace quire::cli {
namespace {

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

// Finds the command that `name` is, or the neighbour that has it.
Status find_command(const Program& program, const std::string& name, CommandLine& to) {
  const auto own = std::ranges::find_if(program.commands, [&](const Command& c) { return name == c.name; });
  if (own != program.commands.end()) {
    to.command = &*own;
    return {};
  }
  to.neighbour = neighbour_with(program.neighbours, name);
  to.neighbours_command = name;
  if (to.neighbour != nullptr) return {};
  const std::vector<std::string> known = command_names(program);
  const std::string_view meant = nearest(name, known);
  return request_error("there is no command '{}'{}; there are {}", escaped(name, 100),
                       meant.empty() ? "" : fmt::format(", did you mean {}", meant), fmt::join(known, ", "));
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

std::vector<std::string> long_names(std::span<Flags* const> all) {
  std::vector<std::string> names;
  for (const Flags* const flags : all)
    for (const Flag& flag : flags->rows())
      for (const std::string& name : flag.row().names)
        if (name.starts_with("--")) names.push_back(name);
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

namespace {

// Goes through what follows a command's name as CLI11 will, which knows one program's options only.
class Walk {
 public:
  Walk(const Flags& program, const Flags& command) : program_(program), command_(command) {}

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
    const Flag* const model = command_.find("--model");
    return model != nullptr && !model->row().position.empty() && model->row().required && model_.empty() && words_ == 0;
  }

 private:
  const Flag* find(std::string_view name) const {
    for (const Flags* const flags : {&command_, &program_})
      for (const Flag& flag : flags->rows())
        if (flag.has_name(name)) return &flag;
    return nullptr;
  }

  // How many of the arguments it was.
  Result<size_t> take_option(std::span<const std::string> given, bool leave_model) {
    std::string first = with_dashes(given[0]);
    const std::string name = first.substr(0, first.find('='));
    const Flag* const flag = find(name);
    if (flag == nullptr) {
      QUIRE_CHECKED(take_unknown(name));
      rest_.push_back(std::move(first));
      return 1;
    }
    const bool has_value = name.size() < first.size();
    std::vector<std::string>& to = flag->has_name("--model") && !flag->row().position.empty() ? model_ : rest_;
    if (is_brief_name(name)) first.replace(0, name.size(), flag->name());
    if (has_value && !first.starts_with("--")) {
      to.insert(to.end(), {name, first.substr(name.size() + 1)});  // -c=8k, which CLI11 reads as the value =8k
      return 1;
    }
    to.push_back(first);
    if (flag->is_switch() || has_value || given.size() < 2) return 1;
    to.push_back(given[1]);
    return flag->row().lists ? take_list(given, name, leave_model) : 2;
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
    const std::string& command = command_.name();
    if (const ForeignOption* const o = find_foreign(command, name); o != nullptr) {
      foreign_ += fmt::format("{}{} is an option of {}: {}", foreign_.empty() ? "" : "; ", escaped(name, 60),
                              o->program, o->instead);
      return {};
    }
    if (name.starts_with("--") || name.size() < 3) return {};
    const Flag* const brief = find(name.substr(0, 2));
    if (brief != nullptr && !brief->is_switch() && name.find_first_not_of("0123456789.-", 2) > 2) return {};
    return request_error(
        "{} has no option {}{}; see quire help {}", command, escaped(name, 60),
        brief == nullptr ? ""
                         : fmt::format(" (write a value apart: {} {})", name.substr(0, 2), escaped(name.substr(2), 60)),
        command);
  }

  const Flags& program_;
  const Flags& command_;
  std::vector<std::string> model_, rest_;  // -m and its value; everything else
  std::string foreign_;                    // options of other programs, with what to write instead
  size_t words_ = 0;                       // that stand by themselves
};

}  // namespace

std::vector<std::string> command_names(const Program& program) {
  std::vector<std::string> names;
  for (const Command& c : program.commands) names.emplace_back(c.name);
  for (const Neighbour& n : program.neighbours)
    for (const Door& d : n.doors) names.emplace_back(d.name);
  return names;
}

Result<CommandLine> split_command_line(const Program& program, std::vector<std::string> arguments) {
  // The first that is no option names the command: CLI11 would only say that one is required.
  size_t at = 0;
  for (; at < arguments.size() && arguments[at].starts_with("-"); ++at) {
    arguments[at] = with_dashes(arguments[at]);
    if (arguments[at] == "--log-level" || arguments[at] == "--cpu") ++at;  // its value
  }
  CommandLine line;
  const std::vector<std::string> known = command_names(program);
  const bool named = at < arguments.size() && (arguments[at] == "help" || std::ranges::count(known, arguments[at]) > 0);
  if (program.usual != nullptr && !named) {
    QUIRE_CHECKED(find_command(program, program.usual, line));
    line.behind = std::move(arguments);
    return line;
  }
  if (at >= arguments.size()) {
    line.before = std::move(arguments);
    return line;
  }
  const auto name = arguments.begin() + static_cast<std::ptrdiff_t>(at);
  line.before.assign(arguments.begin(), name);
  if (*name != "help") {
    QUIRE_CHECKED(find_command(program, *name, line));
    line.behind.assign(name + 1, arguments.end());
    return line;
  }
  if (name + 1 != arguments.end()) QUIRE_CHECKED(find_command(program, *(name + 1), line));
  (line.command == nullptr ? line.before : line.behind).emplace_back("--help");
  return line;
}

Result<std::vector<std::string>> prepared_arguments(const Flags& program, const Flags& command,
                                                    std::span<const std::string> arguments) {
  std::optional<Walk> walk(std::in_place, program, command);
  QUIRE_CHECKED(walk->go(arguments, false));
  if (walk->lacks_model()) {
    walk.emplace(program, command);
    QUIRE_CHECKED(walk->go(arguments, true));
  }
  return std::move(*walk).result();
}

std::string unexpected_argument(std::span<Flags* const> flags, const std::string& argument) {
  const std::string& command = flags.back()->name();
  const std::string name = argument.substr(0, argument.find('='));
  if (!name.starts_with("-"))
    return fmt::format("{} takes no further argument, but there is '{}'; see quire help {}", command,
                       escaped(argument, 60), command);
  const std::vector<std::string> known = long_names(flags);
  const std::string_view meant = nearest(name, known);
  return fmt::format("{} has no option {}{}; see quire help {}", command, escaped(name, 60),
                     meant.empty() ? "" : fmt::format(", did you mean {}", meant), command);
}

}  // namespace quire::cli
