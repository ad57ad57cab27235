#include "support/numerics_rows.h"

#include <fmt/format.h>

#include <fstream>
#include <map>

#include "eval/logit_hash.h"
#include "support/golden.h"
#include "support/tiny_models.h"

namespace quire::test {
namespace {

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

}  // namespace

std::string NumericsRow::key() const {
  return fmt::format("{} {} {} {}", machine, arithmetic, kv_cache, model);
}

std::string NumericsRow::line() const {
  return fmt::format("{} {:016x}\n", key(), hash);
}

Result<std::vector<NumericsRow>> numerics_rows(Device device, const std::string& machine, bool fp8_caches) {
  std::vector<NumericsRow> rows;
  QUIRE_TRY(const auto models, models_for(device));
  const std::pair<std::string, KvCacheType> caches[] = {{"bf16", KvCacheType::kBf16}, {"fp8", KvCacheType::kFp8}};
  const std::pair<std::string, Arithmetic> arithmetics[] = {{"latency", Arithmetic::kLatency},
                                                            {"throughput", Arithmetic::kThroughput}};
  for (const auto& [name, model] : models)
    for (const auto& [kv_name, kv] : caches)
      for (const auto& [arithmetic_name, arithmetic] : arithmetics) {
        if (device == Device::kCuda && arithmetic != Arithmetic::kThroughput) continue;
        if (kv == KvCacheType::kFp8 && !fp8_caches) continue;
        QUIRE_TRY(const uint64_t hash, logit_hash(model, {.device = device, .arithmetic = arithmetic, .kv_cache = kv}));
        rows.push_back({machine, arithmetic_name, kv_name, name, hash});
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
