#include "support/numerics_rows.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "core/hash.h"
#include "engine/engine.h"
#include "eval/scorer.h"
#include "support/tiny_models.h"

namespace quire::test {
namespace {

constexpr int64_t kPrompt = 64, kGenerated = 64;

// Of the source tree; on another machine than the one that compiled, of the current folder.
std::string source_file(const std::string& path) {
  const std::string here = QUIRE_SOURCE_DIR "/" + path;
  return std::filesystem::exists(here) ? here : path;
}

using ModelPtr = std::shared_ptr<const LoadedModel>;

// Of every architecture, in shapes that the device takes.
Result<std::vector<std::pair<std::string, ModelPtr>>> models_for(Device device) {
  std::vector<std::pair<std::string, ModelPtr>> models;
  for (TinyModel m : tiny_models()) {
    if (device == Device::kCuda) {
      if (m.name != "tiny-qwen3moe" && m.name != "tiny-qwen35moe") continue;
      if (m.hybrid()) m.head_dim = 64, m.state = 128;
    }
    const TinyModelFile file(m);  // stays mapped when the name is gone
    QUIRE_TRY(ModelPtr model, load_model(file.path()));
    models.emplace_back(m.name, std::move(model));
  }
  for (const std::string name : {"demo-dense-nvfp4", "demo-moe-nvfp4"}) {
    QUIRE_TRY(ModelPtr model, load_model(source_file("models/" + name + ".gguf")));
    models.emplace_back(name, std::move(model));
  }
  return models;
}

std::vector<TokenId> prompt_for(const ModelPtr& model) {
  std::vector<TokenId> tokens;
  for (int64_t i = 0; i < kPrompt; ++i)
    tokens.push_back(static_cast<TokenId>(i * i * 7919 % model->model->config().vocab));
  return tokens;
}

uint64_t add_logits(uint64_t h, std::span<const float> logits) {
  return fnv1a(h, logits.data(), logits.size_bytes());
}

// Logits of every token of a text, by the kernels of prompts or of generated tokens.
Result<uint64_t> score(uint64_t h, const ModelPtr& model, ScorerOptions options, std::span<const TokenId> tokens) {
  QUIRE_TRY(const std::unique_ptr<Scorer> scorer, Scorer::create(model, std::move(options)));
  QUIRE_CHECKED(scorer->run(tokens, [&](int64_t, std::span<const float> logits) { h = add_logits(h, logits); }));
  return h;
}

// Logits that an engine's generated tokens are drawn from.
Result<uint64_t> generate(uint64_t h, const ModelPtr& model, Arithmetic arithmetic, KvCacheType kv) {
  EngineOptions options{.threads = 2, .context = kPrompt + kGenerated, .max_sequences = 1, .kv_cache = kv};
  options.arithmetic = arithmetic;
  options.probe = [&](std::string_view name, int, const Tensor& x) {
    if (name != "logits") return;
    for (int64_t row = 0; row < x.dim(0); ++row)
      h = add_logits(h, {x.as<float>() + row * x.stride[0], static_cast<size_t>(x.dim(1))});
  };
  QUIRE_TRY(const std::unique_ptr<Engine> engine, Engine::create(model, std::move(options)));
  Request request;
  request.prompt = prompt_for(model);
  request.max_tokens = kGenerated;
  request.ignore_eos = true;
  QUIRE_TRY([[maybe_unused]] const RequestId id, engine->submit(std::move(request), [](const TokenEvent&) {}));
  while (engine->busy()) engine->step();
  return h;
}

}  // namespace

std::string NumericsRow::key() const {
  return fmt::format("{} {} {} {}", machine, arithmetic, kv_cache, model);
}

std::string NumericsRow::line() const {
  return fmt::format("{} {:016x}\n", key(), hash);
}

Result<std::vector<NumericsRow>> numerics_rows(Device device, const std::string& machine) {
  std::vector<NumericsRow> rows;
  QUIRE_TRY(const auto models, models_for(device));
  for (const auto& [name, model] : models) {
    const std::vector<TokenId> prompt = prompt_for(model);
    for (const auto& [kv_name, kv] : {std::pair{"bf16", KvCacheType::kBf16}, {"fp8", KvCacheType::kFp8}}) {
      const ScorerOptions scorer{.device = device, .threads = 2, .window = kPrompt, .kv_cache = kv};
      QUIRE_TRY(const uint64_t prompts, score(kFnvStart, model, scorer, prompt));
      if (device == Device::kCuda) {
        ScorerOptions generated = scorer;
        generated.generated = true;
        QUIRE_TRY(const uint64_t all, score(prompts, model, generated, prompt));
        rows.push_back({machine, "throughput", kv_name, name, all});
        continue;
      }
      for (const auto& [arithmetic_name, arithmetic] :
           {std::pair{"latency", Arithmetic::kLatency}, {"throughput", Arithmetic::kThroughput}}) {
        QUIRE_TRY(const uint64_t all, generate(prompts, model, arithmetic, kv));
        rows.push_back({machine, arithmetic_name, kv_name, name, all});
      }
    }
  }
  return rows;
}

NumericsDifference differences(const std::vector<NumericsRow>& rows) {
  std::map<std::string, std::string> table;
  std::ifstream file(source_file("tests/data/numerics/hashes.txt"));
  for (std::string line; std::getline(file, line);)
    if (const size_t end = line.rfind(' '); !line.starts_with('#') && end != line.npos)
      table[line.substr(0, end)] = line;
  NumericsDifference d;
  for (const NumericsRow& row : rows) {
    const auto known = table.find(row.key());
    if (known == table.end()) {
      d.unknown += row.line();
    } else if (known->second + "\n" != row.line()) {
      d.changed += fmt::format("{}\n  now {}", known->second, row.line());
    }
  }
  return d;
}

}  // namespace quire::test
