#include "command/parse.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "command/arguments.h"
#include "command/flag_values.h"

namespace quire::cli {
namespace {

// What it does not know are short names of several letters: they never reach it (arguments.cpp).
std::string names_for_cli11(const Flag& flag) {
  std::string names;
  for (size_t at = 0; at < flag.declared().size();) {
    const size_t end = std::min(flag.declared().find(',', at), flag.declared().size());
    const std::string name = flag.declared().substr(at, end - at);
    if (!is_brief_name(name)) names += (names.empty() ? "" : ",") + name;
    at = end + 1;
  }
  return names;
}

class Parser {
 public:
  explicit Parser(std::vector<Flags*> all) : all_(std::move(all)) {
    for (Flags* const flags : all_)
      for (Flag& flag : flags->rows()) add(flag);
    for (const auto& [flag, option] : options_)
      if (!flag->row().needed.empty()) option->needs(app_.get_option(flag->row().needed));
  }

  Result<Asked> parse(std::vector<std::string> arguments) {
    try {
      std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
      app_.parse(arguments);
    } catch (const CLI::CallForHelp&) {
      return Asked::kHelp;
    } catch (const CLI::CallForVersion&) {
      return Asked::kVersion;
    } catch (const CLI::ParseError& e) {
      return request_error("{}", complaint(e));
    }
    for (const auto& [flag, option] : options_) {
      if (option->count() == 0) continue;
      if (flag->is_switch())
        flag->set_given();
      else
        QUIRE_CHECKED(flag->set(option->reduced_results()));
    }
    return Asked::kAction;
  }

 private:
  void add(Flag& flag) {
    const std::string names = names_for_cli11(flag);
    if (names == Flags::kHelpNames) return;  // CLI11 has it by itself
    if (names == Flags::kVersionNames) {
      app_.set_version_flag(names, std::string("version"));
      return;
    }
    if (bool* const* const member = std::get_if<bool*>(&flag.member()))
      options_.emplace_back(&flag, app_.add_flag(names, **member));
    else
      options_.emplace_back(&flag, add_option(flag, names));
  }

  CLI::Option* add_option(Flag& flag, const std::string& names) {
    const FlagRow& row = flag.row();
    CLI::Option* const option = app_.add_option(names, [](const CLI::results_t&) { return true; });
    option->type_name(row.takes)->required(row.required);
    if (takes_several(flag.member())) option->expected(CLI::detail::expected_max_vector_size);
    if (row.most_words != FlagRow::kAnyNumber) option->expected(row.least_words, row.most_words);
    if (row.separated) option->delimiter(',');
    // Each value of others has the flag's name before it, so that a model or a prompt may follow.
    if (row.position.empty()) option->allow_extra_args(false);
    // Given twice, the last one counts, as in other programs: a script's own value behind one of a variable.
    if (row.most_words == 1) option->take_last();
    option->transform(CLI::Validator([&flag](std::string& value) { return flag.check(value); }, "", "value"));
    return option;
  }

  std::string complaint(const CLI::ParseError& e) const {
    const bool has_command = all_.size() > 1;
    const std::string what = e.what();
    if (!has_command) return what;
    const std::string& command = all_.back()->name();
    if (dynamic_cast<const CLI::RequiredError*>(&e) != nullptr && what.starts_with("--model"))
      return fmt::format("give a model: quire {} FILE", command);
    const std::vector<std::string> rest = app_.remaining();
    if (dynamic_cast<const CLI::ExtrasError*>(&e) == nullptr || rest.empty()) return what;
    return unexpected_argument(all_, rest.front());
  }

  const std::vector<Flags*> all_;  // the command's stand last
  CLI::App app_;
  std::vector<std::pair<Flag*, CLI::Option*>> options_;
};

}  // namespace

Result<Asked> parse(std::initializer_list<Flags*> flags, std::vector<std::string> arguments) {
  return Parser(flags).parse(std::move(arguments));
}

}  // namespace quire::cli
