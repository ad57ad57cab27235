// quire localai: a backend of LocalAI.
#include "localai/command.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "command/parse.h"
#include "command/serve_flags.h"
#include "core/escape.h"
#include "localai/localai.h"

namespace quire::cli {
namespace {

// What an option of LocalAI's may not say: which file, what HTTP has of its own, and where else to listen.
bool is_foreign(const Flag& flag) {
  constexpr std::string_view kNames[] = {"--model", "--help", "--prefix-cache-file", "--limits"};
  return flag.row().group == kHttpGroup || flag.row().group == kRoutersGroup ||
         std::ranges::any_of(kNames, [&](std::string_view name) { return flag.has_name(name); });
}

std::string with_dashes(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

// What kind of file an option reads is told by its name's ending: who may call a backend is not to find out what else
// lies in the model's folder.
constexpr std::string_view kReadable[] = {".jinja", ".jinja2", ".j2", ".json"};

// The value of an option that names a file, other than a model's: a file of the model's folder, or below it, wherever
// links lead.
Result<std::string> file_beside_model(const std::string& option, const std::string& value, const std::string& folder) {
  namespace fs = std::filesystem;
  std::error_code failed;
  const fs::path given(value);
  const fs::path path = given.is_absolute() ? given : fs::path(folder) / given;
  const fs::path real = fs::canonical(path, failed), allowed = failed ? fs::path() : fs::canonical(folder, failed);
  const bool inside =
      !failed && std::mismatch(allowed.begin(), allowed.end(), real.begin(), real.end()).first == allowed.end();
  const bool readable = std::any_of(std::begin(kReadable), std::end(kReadable),
                                    [&](std::string_view end) { return real.string().ends_with(end); });
  if (inside && readable) return path.string();
  return request_error(
      "option '{}': '{}' is no file that a backend of LocalAI reads; it must be in the model's folder or below it, and "
      "end in {}",
      escaped(option), escaped(value), fmt::join(kReadable, ", "));
}

// Whether the option's value is a file to be read, and no word or model.
bool names_file(const Flag& flag, const std::string& value) {
  if (flag.row().takes.find("FILE") == std::string::npos) return false;
  if (flag.has_name("--mtp") || flag.has_name("--mmproj")) return false;
  const bool word = value == "model" || value == "none" || value == "auto" || value == "vllm";
  return !(word && flag.has_name("--generation-config"));
}

// Options by name, as a command line of `quire serve`.
Result<server::ServeOptions> read_options(const localai::AskedOptions& asked) {
  Flags rows("serve", "");
  ServeFlags flags;
  flags.add(rows);
  std::set<const Flag*> said;
  std::vector<std::string> arguments;
  for (const auto& [name, value] : asked.given) {
    const Flag* const flag = rows.find("--" + with_dashes(name));
    if (flag == nullptr || name.empty())
      return request_error("there is no option '{}'; `quire serve --help` lists them", escaped(name));
    if (is_foreign(*flag)) return request_error("option '{}': a backend of LocalAI has none such", escaped(name));
    said.insert(flag);
    std::string said_value = value;
    if (names_file(*flag, value)) {
      QUIRE_TRY(said_value, file_beside_model(name, value, asked.folder));
    }
    arguments.push_back(fmt::format("--{}={}", with_dashes(name), said_value));
  }
  for (const auto& [name, value] : asked.defaults)
    if (said.count(rows.find("--" + name)) == 0) arguments.push_back(fmt::format("--{}={}", name, value));
  QUIRE_TRY([[maybe_unused]] const Asked result, parse({&rows}, std::move(arguments)));
  QUIRE_TRY(server::ServeOptions options, flags.parsed());
  options.files_within = asked.folder;
  return options;
}

Action add_localai(Flags& flags) {
  auto options = std::make_shared<localai::BackendOptions>();
  flags.add("--addr ADDRESS", &options->address, "HOST:PORT to listen at, as LocalAI says it; port 0: any free one")
      .required();
  flags.add("--auth-token-file FILE", &options->token_file,
            "File or pipe with the token that calls must show (authorization: Bearer TOKEN)");
  flags.footer("LocalAI starts this program and says which model it loads. See docs/localai.md.");
  return [options]() -> Status {
    options->read_options = read_options;
    return localai::run_backend(*options);
  };
}

constexpr const Door& kDoor = kLocalAiDoors[0];
constexpr Command kCommands[] = {
    {kDoor.name, kDoor.summary, add_localai},
    {"options", "Print the options of a command as a table", [](Flags& flags) { return add_options(flags, kLocalAi); }},
};

}  // namespace

constinit const Program kLocalAi{"quire-localai", kDoor.summary, kCommands, {}, kDoor.name};

}  // namespace quire::cli
