#include "cli/hub_flags.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <filesystem>

#include "cli/options.h"
#include "core/escape.h"
#include "core/loopback.h"
#include "core/memory.h"
#include "core/output.h"
#include "engine/cuda_device.h"

namespace quire::cli {
namespace {

constexpr int64_t kMaxTokenBytes = 4096;

// One line of visible characters: it becomes a header.
Result<std::string> read_token(const std::string& path) {
  QUIRE_TRY(std::string text, read_text(path, kMaxTokenBytes, "that is too long for a token"));
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' ')) text.pop_back();
  for (const char c : text)
    if (c <= ' ' || c >= 127) return request_error("{}: a token is one line of letters and digits", path);
  if (text.empty()) return request_error("{} is empty; it should hold a token", path);
  return text;
}

// A token is sent to the hub that it was given for, and never over a connection that others can read.
Result<std::string> token_for(const HubFlags& flags, const hub::Url& url) {
  if (!flags.token_file.empty()) {
    if (!url.tls && !is_this_machine(url.host))
      return request_error("--token-file with --hub {}: a token is not sent without TLS; write https://", flags.hub);
    return read_token(flags.token_file);
  }
  // What huggingface-cli login has written is for that hub alone.
  if (url.text() != std::string(kDefaultHub) + "/") return std::string();
  const Result<std::string> home = hub::default_home();
  const std::string path = home.ok() ? *home + "/token" : "";
  if (path.empty() || access(path.c_str(), F_OK) != 0) return std::string();
  return read_token(path);
}

std::string value_of(CLI::App& command, const char* option, const std::string& otherwise) {
  const CLI::Option* const o = command.get_option_no_throw(option);
  return o == nullptr || o->count() == 0 ? otherwise : o->as<std::string>();
}

}  // namespace

void HubFlags::add_cache(CLI::App& app) {
  app.add_option("--hub-cache", cache,
                 "Folder of what was fetched from a hub, shared with other tools; no environment variable is read "
                 "(default: ~/.cache/huggingface/hub)")
      ->type_name("FOLDER");
}

void HubFlags::add(CLI::App& app) {
  add_cache(app);
  app.add_option("--revision", revision, "Of a model of a hub: a branch, a tag or a commit")->capture_default_str();
  app.add_flag("--offline", offline, "Ask no hub: take what is in the cache");
  app.add_option("--hub", hub, "Where models of the form hf:ORG/NAME are")->type_name("URL")->capture_default_str();
  app.add_option("--token-file", token_file,
                 "File with the token for a hub, for gated models (default: what huggingface-cli login wrote, for the "
                 "default hub only)")
      ->type_name("FILE");
  app.add_option("--hub-ca", ca_file, "Certificates (PEM) to trust for a hub, beside the system's")->type_name("FILE");
  app.add_option("--hub-connections", connections, "Connections that fetch one file at once")->capture_default_str();
}

Result<std::string> HubFlags::cache_folder() const {
  if (!cache.empty()) return cache;
  QUIRE_TRY(const std::string home, hub::default_home());
  return home + "/hub";
}

Result<hub::HubOptions> HubFlags::parsed() const {
  hub::HubOptions o;
  if (connections < 1 || connections > 64) return request_error("--hub-connections {}: must be 1 to 64", connections);
  QUIRE_TRY(o.cache, cache_folder());
  o.offline = offline;
  o.connections = connections;
  QUIRE_TRY(o.http.hub, hub::Url::parse(hub).context("--hub"));
  if (!o.http.hub.target.ends_with('/')) o.http.hub.target += '/';
  if (offline) return o;
  QUIRE_TRY(o.http.token, token_for(*this, o.http.hub));
  QUIRE_TRY(o.http.tls, hub::TlsContext::create(ca_file));
  o.http.say = [](const std::string& text) { tell(text); };
  return o;
}

Result<hub::Place> place_of(const std::string& device, int gpu) {
  if (device != "cuda") return hub::Place{"this machine's memory that is available", available_memory(), false};
  QUIRE_TRY(const std::vector<GpuInfo> gpus, list_gpus());
  if (gpu < 0 || static_cast<size_t>(gpu) >= gpus.size())
    return request_error("--gpu {}: there are {} GPUs", gpu, gpus.size());
  const GpuInfo& g = gpus[static_cast<size_t>(gpu)];
  return hub::Place{fmt::format("the memory of GPU {} that is free", gpu), g.free, true};
}

namespace {

// A short name of a model in the cache, with a kind behind a colon or without. Errors: several are called so.
Result<std::optional<hub::ModelName>> cached_model(const HubFlags& flags, const std::string& word) {
  const Result<std::string> folder = flags.cache_folder();
  if (!folder.ok() || word.find('/') != word.npos) return std::optional<hub::ModelName>();
  std::vector<std::string> ids;
  for (const hub::CachedModel& m : hub::Cache(*folder).list())
    if (!m.commit.empty() && (ids.empty() || ids.back() != m.id)) ids.push_back(m.id);
  const size_t colon = word.rfind(':');
  std::string choice;
  std::vector<std::string> called = hub::ids_called(word, ids);
  if (called.empty() && colon != word.npos) {
    called = hub::ids_called(word.substr(0, colon), ids);
    choice = word.substr(colon + 1);
  }
  if (called.empty()) return std::optional<hub::ModelName>();
  if (called.size() > 1)
    return request_error("'{}' may be {} of the cache: write more of the name", escaped(word, 100),
                         escaped(fmt::format("{}", fmt::join(called, " or ")), 400));
  QUIRE_TRY(hub::ModelName name,
            hub::ModelName::parse(choice.empty() ? called[0] : called[0] + ":" + choice, flags.revision));
  return std::optional(std::move(name));
}

}  // namespace

Result<std::optional<NamedModel>> named_model(const HubFlags& flags, const std::string& word) {
  std::error_code unknown;
  if (hub::is_hub_name(word)) {
    QUIRE_TRY(hub::ModelName name, hub::ModelName::parse(word, flags.revision));
    return std::optional(NamedModel{std::move(name), false});
  }
  // What is a file, or lies in a folder that is there, is meant as one.
  const std::filesystem::path path(word);
  if (std::filesystem::exists(path, unknown) || word.ends_with(".gguf") ||
      (path.has_parent_path() && std::filesystem::exists(path.parent_path(), unknown)))
    return std::optional<NamedModel>();
  if (hub::looks_like_hub_name(word)) {
    QUIRE_TRY(hub::ModelName name, hub::ModelName::parse(word, flags.revision));
    tell(fmt::format("{} is no file here: it is taken for a model of {}", escaped(word, 200),
                     flags.offline ? "the cache" : flags.hub));
    return std::optional(NamedModel{std::move(name), false});
  }
  QUIRE_TRY(std::optional<hub::ModelName> name, cached_model(flags, word));
  if (!name) return std::optional<NamedModel>();
  return std::optional(NamedModel{std::move(*name), true});
}

Status fetch_named_models(const HubFlags& flags, CLI::App& command) {
  for (const char* const option : {"--model", "models"}) {
    CLI::Option* const o = command.get_option_no_throw(option);
    if (o == nullptr) continue;
    std::vector<std::string> values = o->results();
    bool any = false;
    for (std::string& value : values) {
      QUIRE_TRY(const std::optional<NamedModel> named, named_model(flags, value));
      if (!named) continue;
      any = true;
      const hub::ModelName& name = named->name;
      HubFlags used = flags;
      used.offline = flags.offline || named->cached;
      QUIRE_TRY(hub::HubOptions options, used.parsed());
      int gpu = 0;
      (void)CLI::detail::lexical_cast(value_of(command, "--gpu", "0"), gpu);
      QUIRE_TRY(options.place, place_of(value_of(command, "--device", "cpu"), gpu));
      QUIRE_TRY(const hub::Pulled pulled, hub::pull(name, options));
      tell(fmt::format("{}: {} ({})", name.text(), pulled.kind, pulled.why));
      value = pulled.path;
      // As vLLM calls it: the path has a commit in it.
      CLI::Option* const served = command.get_option_no_throw("--served-model-name");
      if (served != nullptr && served->count() == 0) {
        served->add_result(name.id);
        served->run_callback();
      }
    }
    if (!any) continue;
    o->clear();
    for (const std::string& value : values) o->add_result(value);
    o->run_callback();
  }
  return {};
}

}  // namespace quire::cli
