#include "command/hub_flags.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <filesystem>

#include "command/text_input.h"
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

std::string value_of(const Flags& command, const char* name, const std::string& otherwise) {
  const Flag* const flag = command.find(name);
  return flag == nullptr || !flag->given() ? otherwise : flag->values().back();
}

}  // namespace

void HubFlags::add_cache(Flags& flags) {
  flags.add("--hub-cache FOLDER", &cache,
            "Folder of what was fetched from a hub, shared with other tools; no environment variable is read "
            "(default: ~/.cache/huggingface/hub)");
}

void HubFlags::add(Flags& flags) {
  add_cache(flags);
  flags.add("--revision", &revision, "Of a model of a hub: a branch, a tag or a commit");
  flags.add("--offline", &offline, "Ask no hub: take what is in the cache");
  flags.add("--hub URL", &hub, "Where models of the form hf:ORG/NAME are");
  flags.add("--token-file FILE", &token_file,
            "File with the token for a hub, for gated models (default: what huggingface-cli login wrote, for the "
            "default hub only)");
  flags.add("--hub-ca FILE", &ca_file, "Certificates (PEM) to trust for a hub, beside the system's");
  flags.add("--hub-connections", &connections, between(1, 64), "Connections that fetch one file at once");
}

Result<std::string> HubFlags::cache_folder() const {
  if (!cache.empty()) return cache;
  QUIRE_TRY(const std::string home, hub::default_home());
  return home + "/hub";
}

Result<hub::HubOptions> HubFlags::parsed() const {
  hub::HubOptions o;
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
  if (device != "cuda" && (device != "auto" || (gpu == 0 && !open_gpu(gpu).ok())))
    return hub::Place{"this machine's memory that is available", available_memory(), false};
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

// Whether a command wants what is beside a model: those that take pictures do, unless told otherwise.
bool takes_tower(const Flags& command) {
  const Flag *const named = command.find("--mmproj"), *const none = command.find("--no-mmproj");
  return named != nullptr && !named->given() && none != nullptr && !none->given();
}

Status fetch_named_models(const HubFlags& flags, Flags& command) {
  for (const char* const name : kModelFlags) {
    Flag* const flag = command.find(name);
    if (flag == nullptr) continue;
    std::vector<std::string> values = flag->values();
    bool any = false;
    for (std::string& value : values) {
      QUIRE_TRY(const std::optional<NamedModel> named, named_model(flags, value));
      if (!named) continue;
      any = true;
      HubFlags used = flags;
      used.offline = flags.offline || named->cached;
      QUIRE_TRY(hub::HubOptions options, used.parsed());
      QUIRE_TRY(options.place,
                place_of(value_of(command, "--device", "auto"), std::stoi(value_of(command, "--gpu", "0"))));
      options.mmproj = takes_tower(command);
      QUIRE_TRY(const hub::Pulled pulled, hub::pull(named->name, options));
      tell(fmt::format("{}: {}{} ({})", named->name.text(), pulled.kind,
                       pulled.mmproj.empty() ? "" : " with its vision tower", pulled.why));
      value = pulled.path;
      // As vLLM calls it: the path has a commit in it.
      Flag* const served = command.find("--served-model-name");
      if (served != nullptr && !served->given()) QUIRE_CHECKED(served->set({named->name.id}));
    }
    if (any) QUIRE_CHECKED(flag->set(std::move(values)));
  }
  return {};
}

}  // namespace quire::cli
