#include "localai/load_options.h"

#include <filesystem>

#include "core/escape.h"
#include "engine/cuda_device.h"
#include "server/protocol/json.h"

namespace quire::localai {
namespace {

using server::Json;

// What LocalAI sends where a model's YAML has no `batch`.
constexpr int kBatchUnsaid = 512;

// A path of the YAML is one below LocalAI's folder of models.
std::string below(const std::string& folder, const std::string& path) {
  const std::filesystem::path p(path);
  return p.is_absolute() || folder.empty() ? path : (std::filesystem::path(folder) / p).string();
}

// Where a model lies: itself, if it is a folder.
std::string folder_of(const std::string& model) {
  std::error_code unknown;
  if (std::filesystem::is_directory(model, unknown)) return model;
  const std::filesystem::path parent = std::filesystem::path(model).parent_path();
  return parent.empty() ? "." : parent.string();
}

bool has_gpu() {
  const Result<std::vector<GpuInfo>> gpus = list_gpus();
  if (!gpus.ok()) return false;
  for (const GpuInfo& gpu : *gpus)
    if (gpu.unusable.empty()) return true;
  return false;
}

Result<std::string> cache_type(const backend::ModelOptions& asked) {
  const std::string& key = asked.cachetypekey();
  const std::string& value = asked.cachetypevalue();
  if (!key.empty() && !value.empty() && key != value)
    return request_error("CacheTypeKey is {} and CacheTypeValue {}: keys and values are kept in one type", escaped(key),
                         escaped(value));
  const std::string type = key.empty() ? value : key;
  return type == "f16" ? "bf16" : type;
}

Status refuse_adapters(const backend::ModelOptions& asked) {
  if (asked.loraadapter().empty() && asked.loraadapters().empty()) return {};
  return request_error("LoraAdapter: adapters are not supported; convert a model that they are merged into");
}

Result<std::vector<NamedOption>> defaults_of(const backend::ModelOptions& asked) {
  std::vector<NamedOption> all;
  const auto add = [&](const char* name, auto value, bool said) {
    if (said) all.push_back({name, fmt::format("{}", value)});
  };
  const std::string& file = asked.modelfile().empty() ? asked.model() : asked.modelfile();
  if (file.empty()) return request_error("ModelFile: no file is named");
  add("model", below(asked.modelpath(), file), true);
  add("served-model-name", asked.model(), !asked.model().empty());
  const int context = asked.maxmodellen() > 0 ? asked.maxmodellen() : asked.contextsize();
  add("ctx-size", context, context > 0);
  add("max-num-batched-tokens", asked.nbatch(), asked.nbatch() > 0 && asked.nbatch() != kBatchUnsaid);
  add("threads", asked.threads(), asked.threads() > 0);
  add("gpu-memory-utilization", asked.gpumemoryutilization(), asked.gpumemoryutilization() > 0);
  add("swap-space", asked.swapspace(), asked.swapspace() > 0);
  add("mmproj", below(asked.modelpath(), asked.mmproj()), !asked.mmproj().empty());
  add("mtp", below(asked.modelpath(), asked.draftmodel()), !asked.draftmodel().empty());
  QUIRE_TRY(const std::string cache, cache_type(asked));
  add("kv-cache-dtype", cache, !cache.empty());
  add("device", "cuda", asked.ngpulayers() != 0 && has_gpu());
  return all;
}

Result<std::string> text_of(const std::string& name, const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return std::string(value.get<bool>() ? "true" : "false");
  if (value.is_number()) return server::dump(value);
  return request_error("EngineArgs: '{}' must be a text, a number, a boolean or a list of these, not {}", escaped(name),
                       server::json_kind(value));
}

Status add_engine_args(const std::string& text, std::vector<NamedOption>& given) {
  if (text.empty()) return {};
  server::ApiResult<server::JsonDocument> args = server::parse_json(text);
  if (!args.ok()) return request_error("EngineArgs: {}", args.error().message);
  if ((*args)->is_null()) return {};
  if (!(*args)->is_object())
    return request_error("EngineArgs must be a JSON object, not {}", server::json_kind(**args));
  for (const auto& [name, value] : (*args)->items()) {
    if (value.is_null()) continue;
    const Json list = value.is_array() ? value : Json::array({value});
    for (const Json& item : list) {
      QUIRE_TRY(std::string said, text_of(name, item));
      given.push_back({name, std::move(said)});
    }
  }
  return {};
}

}  // namespace

Result<AskedOptions> read_load_options(const backend::ModelOptions& asked) {
  QUIRE_CHECKED(refuse_adapters(asked));
  AskedOptions options;
  QUIRE_TRY(options.defaults, defaults_of(asked));
  options.folder = folder_of(options.defaults.front().value);
  for (const std::string& option : asked.options()) {
    const size_t colon = option.find(':');  // a flag may stand alone
    const bool alone = colon == std::string::npos;
    options.given.push_back({option.substr(0, colon), alone ? "true" : option.substr(colon + 1)});
  }
  QUIRE_CHECKED(add_engine_args(asked.engineargs(), options.given));
  return options;
}

}  // namespace quire::localai
