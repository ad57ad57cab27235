// quire pull, list and rm: models of a hub in the cache.
#include "cli/commands.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "command/display.h"
#include "command/hub_flags.h"
#include "command/options.h"
#include "core/escape.h"
#include "core/output.h"
#include "gguf/mmproj_name.h"

namespace quire::cli {
namespace {

struct PullOptions {
  std::string model, device = "auto";
  int gpu = 0;
  bool json = false, mmproj = true;
  HubFlags flags;
};

Status pull_model(const PullOptions& o) {
  QUIRE_TRY(const hub::ModelName name, hub::ModelName::parse(o.model, o.flags.revision));
  QUIRE_TRY(hub::HubOptions options, o.flags.parsed());
  QUIRE_TRY(options.place, place_of(o.device, o.gpu));
  options.mmproj = o.mmproj;
  QUIRE_TRY(const hub::Pulled pulled, hub::pull(name, options));
  if (o.json) {
    const nlohmann::ordered_json json = {
        {"model", name.id},      {"revision", name.revision}, {"commit", pulled.commit},
        {"kind", pulled.kind},   {"why", pulled.why},         {"path", pulled.path},
        {"bytes", pulled.bytes}, {"fetched", pulled.fetched}, {"mmproj", pulled.mmproj}};
    print_out("{}\n", json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
    return {};
  }
  tell(fmt::format("{}: {}{} ({}); {}", name.text(), pulled.kind, pulled.mmproj.empty() ? "" : " with its vision tower",
                   pulled.why, pulled.fetched == 0 ? "it was in the cache" : human_bytes(pulled.fetched) + " fetched"));
  print_out("{}\n", escaped(pulled.path, 0));
  return {};
}

struct ListOptions {
  HubFlags flags;
  bool json = false;
};

// The kinds of a snapshot's models, in the order of files.
std::vector<std::string> kinds_of(const hub::CachedModel& m) {
  std::vector<hub::NamedFile> files;
  for (const hub::CachedFile& f : m.files) files.push_back({f.path, f.bytes});
  std::vector<std::string> kinds;
  for (const hub::Variant& v : hub::variants_of(files))
    kinds.push_back(v.parts_missing == 0 ? v.kind : v.kind + " (parts missing)");
  return kinds;
}

Status list_models(const ListOptions& o) {
  QUIRE_TRY(const std::string folder, o.flags.cache_folder());
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  const std::vector<hub::CachedModel> models = hub::Cache(folder).list();
  if (!o.json && !models.empty())
    print_out("{:<44} {:>9}  {:<12} {:<10} {}\n", "model", "bytes", "revision", "commit", "kinds");
  for (const hub::CachedModel& m : models) {
    uint64_t bytes = 0;
    for (const hub::CachedFile& f : m.files) bytes += f.bytes;
    const std::vector<std::string> kinds = kinds_of(m);
    if (o.json) {
      json.push_back({{"model", m.id},
                      {"commit", m.commit},
                      {"revisions", m.refs},
                      {"bytes", bytes},
                      {"unfinished_bytes", m.unfinished},
                      {"kinds", kinds}});
      for (const hub::CachedFile& f : m.files) json.back()["files"].push_back({{"path", f.path}, {"bytes", f.bytes}});
    } else {
      print_out("{:<44} {:>9}  {:<12} {:<10} {}{}\n", m.id, human_bytes(bytes),
                escaped(fmt::format("{}", fmt::join(m.refs, ",")), 60), m.commit.substr(0, 8),
                escaped(fmt::format("{}", fmt::join(kinds, ", "))),
                m.unfinished == 0 ? "" : fmt::format(" [{} unfinished]", human_bytes(m.unfinished)));
    }
  }
  if (o.json) print_out("{}\n", json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  if (!o.json && models.empty()) tell(fmt::format("{} has no models", folder));
  return {};
}

Status remove_model(const std::string& model, const HubFlags& flags) {
  QUIRE_TRY(const hub::ModelName name, hub::ModelName::parse(model));
  QUIRE_TRY(const std::string folder, flags.cache_folder());
  const hub::Cache cache(folder);
  std::vector<std::string> paths;  // of the choice, in whichever snapshots
  for (const hub::CachedModel& m : cache.list()) {
    if (m.id != name.id || name.choice.empty()) continue;
    std::vector<hub::NamedFile> files;
    for (const hub::CachedFile& f : m.files) files.push_back({f.path, f.bytes});
    const std::vector<hub::Variant> variants = hub::variants_of(files);
    QUIRE_TRY(const hub::Choice choice, hub::choose(variants, name, {}));
    paths.insert(paths.end(), choice.variant.files.begin(), choice.variant.files.end());
    // The tower goes with the last that takes it.
    const auto takes = [](const hub::Variant& v) { return !v.mmproj.path.empty(); };
    if (takes(choice.variant) && std::ranges::count_if(variants, takes) == 1)
      for (const hub::NamedFile& f : files)
        if (gguf::is_mmproj(f.path)) paths.push_back(f.path);
  }
  QUIRE_TRY(const uint64_t freed, cache.remove(name, [&](const std::string& path) {
    return name.choice.empty() || std::find(paths.begin(), paths.end(), path) != paths.end();
  }));
  print_out("removed {} from {}: {} freed\n", name.text(), escaped(folder), human_bytes(freed));
  return {};
}

}  // namespace

Action add_pull(Flags& flags) {
  auto o = std::make_shared<PullOptions>();
  flags
      .add("MODEL ORG/NAME[:QUANT|FILE]", &o->model,
           "ORG/NAME on a hub; after a colon a kind (Q4_K_M, safetensors) or a file")
      .required();
  flags.add("--device", chosen_text(&o->device, {{"auto"}, {"cpu"}, {"cuda"}}),
            "Where it is to run, for choosing among several: auto (a GPU if there is one), cpu or cuda");
  flags.add("--gpu", &o->gpu, "Which GPU, as `quire devices` counts them");
  o->flags.add(flags);
  flags.add("!--no-mmproj", &o->mmproj, "Leave out the vision tower that lies beside GGUF files");
  flags.add("--json", &o->json, "Print one JSON object");
  flags.footer("Prints the path of the file or folder. docs/hub.md says how one of several files is chosen.");
  return [o] { return pull_model(*o); };
}

Action add_list(Flags& flags) {
  auto o = std::make_shared<ListOptions>();
  o->flags.add_cache(flags);
  flags.add("--json", &o->json, "Print one JSON array");
  return [o] { return list_models(*o); };
}

Action add_rm(Flags& flags) {
  auto model = std::make_shared<std::string>();
  auto hub = std::make_shared<HubFlags>();
  flags.add("MODEL ORG/NAME[:QUANT|FILE]", model.get(), "ORG/NAME, all of it; or after a colon only a kind or a file")
      .required();
  hub->add_cache(flags);
  return [model, hub] { return remove_model(*model, *hub); };
}

}  // namespace quire::cli
