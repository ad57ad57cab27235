#include "cli/inspect_hub.h"

#include <algorithm>

#include "cli/forecast.h"
#include "command/display.h"
#include "core/escape.h"
#include "core/output.h"

namespace quire::cli {
namespace {

using nlohmann::ordered_json;

constexpr uint64_t kMaxConfigBytes = 16 << 20;

// "https://hub/ORG/NAME[/tree/REV]" and ".../resolve/REV/FILE" of the hub name models of it.
std::optional<Result<hub::ModelName>> name_in_url(const hub::Url& url, const hub::Url& hub, const HubFlags& flags) {
  if (url.origin() != hub.origin() || !url.target.starts_with(hub.target)) return {};
  std::string path = url.target.substr(hub.target.size(), url.target.find('?') - hub.target.size());
  while (path.ends_with('/')) path.pop_back();
  const size_t org = path.find('/');
  if (org == std::string::npos) return {};
  const size_t name = path.find('/', org + 1);
  if (name == std::string::npos) return hub::ModelName::parse(path, flags.revision);
  const std::string id = path.substr(0, name), rest = path.substr(name + 1);
  const size_t kind = rest.find('/');
  if (kind == std::string::npos) return {};
  const std::string what = rest.substr(0, kind), after = rest.substr(kind + 1);
  if (what == "tree") return hub::ModelName::parse(id, after);
  const size_t revision = after.find('/');
  if ((what != "resolve" && what != "blob") || revision == std::string::npos) return {};
  return hub::ModelName::parse(id + ":" + after.substr(revision + 1), after.substr(0, revision));
}

class Inspection {
 public:
  Inspection(const RemoteInspection& o, hub::HubOptions options, ThisMachine here, ordered_json* json)
      : o_(o), options_(std::move(options)), here_(std::move(here)), client_(options_.http), json_(json) {}

  Result<std::optional<hub::RemoteGguf>> of_url(const hub::Url& url) {
    QUIRE_TRY(hub::RemoteGguf remote, hub::read_remote_gguf(client_, {url}, o_.model));
    report_machine(here_, json_);
    say_one(ModelNeeds::of(remote.file), remote.header_bytes);
    return std::optional(std::move(remote));
  }

  Result<std::optional<hub::RemoteGguf>> of_name(const hub::ModelName& name) {
    QUIRE_TRY(const hub::Repository repository, hub::fetch_repository(client_, name));
    const std::vector<hub::Variant> variants = hub::variants_of(hub::named_files(repository));
    auto choice = hub::choose(variants, name, options_.place);
    // That nothing fits is what one wants to be told with figures.
    if (!choice.ok() && (variants.empty() || !name.choice.empty())) return choice.take_error();
    const auto smallest = std::min_element(variants.begin(), variants.end(),
                                           [](const auto& a, const auto& b) { return a.bytes < b.bytes; });
    const hub::Variant& looked_at = choice.ok() ? choice->variant : *smallest;
    std::optional<hub::RemoteGguf> remote;
    ModelNeeds needs;
    uint64_t read = 0;
    if (looked_at.folder) {
      QUIRE_TRY(needs, folder_needs(name, repository, looked_at, read));
    } else {
      std::vector<hub::Url> parts;
      for (const std::string& file : looked_at.files)
        parts.push_back(hub::file_url(options_.http, name, repository.commit, file));
      QUIRE_TRY(remote, hub::read_remote_gguf(client_, parts, name.id));
      needs = ModelNeeds::of(remote->file);
      read = remote->header_bytes;
    }
    report_machine(here_, json_);
    say_variants(name, repository.commit, variants, looked_at, needs,
                 choice.ok() ? choice->why : choice.error().message);
    say_one(needs, read);
    return remote;
  }

 private:
  Result<ModelNeeds> folder_needs(const hub::ModelName& name, const hub::Repository& repository,
                                  const hub::Variant& folder, uint64_t& read) {
    double weights = 0;
    for (const std::string& file : folder.files)
      if (file.ends_with(".safetensors")) weights += static_cast<double>(repository.find(file)->bytes.value_or(0));
    QUIRE_TRY(const std::string text,
              client_.fetch_text(hub::file_url(options_.http, name, repository.commit, "config.json"), kMaxConfigBytes,
                                 name.id, "config.json"));
    read = text.size();
    QUIRE_TRY(const nlohmann::json document, convert::parse_json(text).context(name.id + "/config.json"));
    const auto config = convert::read_hf_config(document);
    if (config.ok()) return ModelNeeds::of(*config, weights);
    ModelNeeds needs{.problem = config.error().message, .weights = weights};
    return needs;
  }

  void say_variants(const hub::ModelName& name, const std::string& commit, const std::vector<hub::Variant>& variants,
                    const hub::Variant& looked_at, const ModelNeeds& needs, const std::string& why) {
    if (json_ != nullptr) {
      ordered_json& out = (*json_)["hub"];
      out = {{"model", name.id}, {"commit", commit}, {"kind", looked_at.kind}, {"why", why}};
      for (const hub::Variant& v : variants) out["kinds"].push_back(variant_json(v, looked_at, needs));
      return;
    }
    print_out("model          {} at {} ({})\n", name.id, escaped(name.revision, 60), commit.substr(0, 8));
    print_out("\n{:<16} {:>6} {:>9}  {:<5} {:>15} {:>14}\n", "kind", "files", "bytes", "fits", "longest context",
              "tokens/s, most");
    for (const hub::Variant& v : variants) {
      const Forecast f = of_variant(v, looked_at, needs);
      const bool known = needs.problem.empty();
      print_out("{:<16} {:>6} {:>9}  {:<5} {:>15} {:>14}{}\n", escaped(v.kind, 40), v.files.size(),
                human_bytes(v.bytes), f.fits ? "yes" : "no", known ? fmt::format("{}", f.longest_context) : "",
                known ? fmt::format("{:.1f}", f.rate) : "", same(v, looked_at) ? "  *" : "");
    }
    print_out("* {}; the other rows follow from their sizes\n", escaped(why));
  }

  static bool same(const hub::Variant& a, const hub::Variant& b) { return a.files == b.files; }

  Forecast of_variant(const hub::Variant& v, const hub::Variant& looked_at, const ModelNeeds& needs) const {
    const double scale = looked_at.bytes > 0 ? static_cast<double>(v.bytes) / static_cast<double>(looked_at.bytes) : 1;
    return forecast(needs, scale, here_, o_.context);
  }

  ordered_json variant_json(const hub::Variant& v, const hub::Variant& looked_at, const ModelNeeds& needs) const {
    const Forecast f = of_variant(v, looked_at, needs);
    ordered_json one = {{"kind", v.kind}, {"files", v.files}, {"bytes", v.bytes}, {"fits", f.fits}};
    if (v.parts_missing > 0) one["parts_missing"] = v.parts_missing;
    if (needs.problem.empty()) {
      one["longest_context"] = f.longest_context;
      one["tokens_per_second_most"] = f.rate;
    }
    return one;
  }

  void say_one(const ModelNeeds& needs, uint64_t read) {
    report_forecast(needs, here_, o_.context, json_);
    if (json_ != nullptr)
      (*json_)["forecast"]["bytes_read"] = read;
    else
      print_out("looked at      {} of headers; nothing was kept\n\n", human_bytes(read));
  }

  const RemoteInspection& o_;
  hub::HubOptions options_;
  ThisMachine here_;
  hub::HttpClient client_;
  ordered_json* json_;
};

}  // namespace

bool is_remote(const std::string& model) {
  return hub::is_hub_name(model) || model.starts_with("https://") || model.starts_with("http://");
}

Result<std::optional<hub::RemoteGguf>> inspect_remote(const RemoteInspection& o, ordered_json* json) {
  QUIRE_TRY(hub::HubOptions options, o.flags.parsed());
  if (o.flags.offline)
    return request_error("--offline: {} is not looked at; quire pull --offline prints the path of what is in the cache",
                         escaped(o.model, 200));
  QUIRE_TRY(options.place, place_of(o.device, o.gpu));
  QUIRE_TRY(ThisMachine here, ThisMachine::measure(o.device, o.gpu));
  const hub::Url hub_url = options.http.hub;
  Inspection work(o, std::move(options), std::move(here), json);
  if (hub::is_hub_name(o.model)) {
    QUIRE_TRY(const hub::ModelName name, hub::ModelName::parse(o.model, o.flags.revision));
    return work.of_name(name);
  }
  QUIRE_TRY(const hub::Url url, hub::Url::parse(o.model));
  if (const auto name = name_in_url(url, hub_url, o.flags)) {
    if (!name->ok()) return name->error();
    return work.of_name(**name);
  }
  return work.of_url(url);
}

}  // namespace quire::cli
