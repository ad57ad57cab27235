// quire localai: a backend of LocalAI.
#include "localai/localai.h"

#include <set>

#include "cli/arguments.h"
#include "cli/command.h"
#include "cli/serve_flags.h"
#include "core/escape.h"

namespace quire::cli {
namespace {

// What an option of LocalAI's may not say: which file, and what HTTP has of its own.
bool is_foreign(const CLI::Option& option) {
  return option.get_group() == "HTTP" || option.check_lname("model") || option.check_lname("help") ||
         option.check_lname("prefix-cache-file") || option.check_lname("limits");
}

std::string with_dashes(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

// Options by name, as a command line of `quire serve`.
Result<server::ServeOptions> read_options(const localai::AskedOptions& asked) {
  CLI::App app;
  ServeFlags flags;
  flags.add(app);
  check_values(app);
  std::set<const CLI::Option*> said;
  std::vector<std::string> arguments;
  for (const auto& [name, value] : asked.given) {
    const CLI::Option* const option = app.get_option_no_throw("--" + with_dashes(name));
    if (option == nullptr || name.empty())
      return request_error("there is no option '{}'; `quire serve --help` lists them", escaped(name));
    if (is_foreign(*option)) return request_error("option '{}': a backend of LocalAI has none such", escaped(name));
    said.insert(option);
    arguments.push_back(fmt::format("--{}={}", with_dashes(name), value));
  }
  for (const auto& [name, value] : asked.defaults)
    if (said.count(app.get_option_no_throw("--" + name)) == 0) arguments.push_back(fmt::format("--{}={}", name, value));
  try {
    std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
    app.parse(arguments);
  } catch (const CLI::ParseError& e) {
    return request_error("{}", complaint(app, e));
  }
  return flags.parsed();
}

}  // namespace

Action add_localai(CLI::App& app) {
  auto options = std::make_shared<localai::BackendOptions>();
  app.add_option("--addr", options->address, "HOST:PORT to listen at, as LocalAI says it; port 0: any free one")
      ->required()
      ->type_name("ADDRESS");
  app.add_option("--auth-token-file", options->token_file,
                 "File or pipe with the token that calls must show (authorization: Bearer TOKEN)")
      ->type_name("FILE");
  app.footer("LocalAI starts this program and says which model it loads. See docs/localai.md.");
  return [options]() -> Status {
    options->read_options = read_options;
    return localai::run_backend(*options);
  };
}

}  // namespace quire::cli
