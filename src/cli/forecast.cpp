#include "cli/forecast.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "command/display.h"
#include "command/hub_flags.h"
#include "core/cpu.h"
#include "core/escape.h"
#include "core/output.h"
#include "engine/cuda_device.h"
#include "engine/model_parts.h"
#include "model/cost.h"
#include "model/memory.h"
#include "ops/probe/probe.h"

namespace quire::cli {
namespace {

constexpr int64_t kAnyContext = int64_t{1} << 20;  // where nothing says what a model was trained for

}  // namespace

Result<ThisMachine> ThisMachine::measure(const std::string& device, int gpu) {
  ThisMachine here;
  QUIRE_TRY(here.place, place_of(device, gpu));
  if (!here.place.gpu) {
    here.device = fmt::format("cpu, {} CPUs", available_cpus());
    ThreadPool pool(available_cpus());
    here.bandwidth = measure_read_bandwidth(pool);
    return here;
  }
  QUIRE_TRY(const std::vector<GpuInfo> gpus, list_gpus());
  const GpuInfo& g = gpus.at(static_cast<size_t>(gpu));
  here.device = fmt::format("cuda:{}, {}", gpu, escaped(g.name));
  here.bandwidth = g.copy_bandwidth;
  return here;
}

double ModelNeeds::kv_read(int64_t context) const {
  return token_kv.read * static_cast<double>(context) + window_kv.read * static_cast<double>(std::min(context, window));
}

double ModelNeeds::kv_held(int64_t context) const {
  return token_kv.held * static_cast<double>(context) +
         window_kv.held * static_cast<double>(std::min(context, window + kForecastRows));
}

ModelNeeds ModelNeeds::of(const gguf::File& file) {
  ModelNeeds n;
  n.weights = static_cast<double>(file.tensor_bytes());
  const Result<ModelParts> parts = load_parts(file);
  if (!parts.ok()) {
    n.problem = parts.error().message;
    return n;
  }
  const ModelConfig& c = parts->model->config();
  const auto memory = estimate_memory(file, c, 1, 1, kForecastRows);
  if (!memory.ok()) {
    n.problem = memory.error().message;
    return n;
  }
  const CacheShape cache = cache_shape(c, DType::kBF16, KvCacheType::kAuto, {.window = c.attention.window});
  const CacheShape reads = cache_reads(c, cache);
  const ModelCost cost = model_cost(file, c, cache);
  n.trained_context = c.context_length;
  const auto of_token = [](const CacheShape& shape, bool window) {
    const CachePools pools = shape.pools().value_or(CachePools{});
    double bytes = 0;
    for (const CachePoolSpec& pool : pools)
      if (pool.unit == CachePoolSpec::Unit::kBlock && pool.is_window() == window)
        bytes += static_cast<double>(pool.bytes) / kBlockTokens;
    return bytes;
  };
  n.token_kv = {of_token(cache, false), of_token(reads, false)};
  n.window_kv = {of_token(cache, true), of_token(reads, true)};
  n.window = c.attention.window;
  n.state = static_cast<double>(state_bytes(cache.pools().value_or(CachePools{})));
  n.step = static_cast<double>(memory->activations);
  n.token_weights = cost.decode_bytes(1, 0) - cost.state_bytes;
  return n;
}

ModelNeeds ModelNeeds::of(const convert::HfConfig& c, double bytes) {
  ModelNeeds n;
  n.weights = bytes;
  n.trained_context = c.context;
  const auto number = [](int64_t x) { return static_cast<double>(x); };
  const double d = number(c.hidden), layers = number(c.layers), embedding = number(c.vocab) * d;
  double recurrent = 0, mixers = 0, dense = 0, widest = 0;
  for (int64_t i = 0; i < c.layers; ++i) {
    const ModelSizes sizes = c.layer_sizes(i);
    const double heads = number(sizes.heads) * number(sizes.head_dim),
                 kv_heads = number(sizes.kv_heads) * number(sizes.head_dim);
    const bool attends = c.recurrent.empty() || !c.recurrent[static_cast<size_t>(i)];
    const bool own_kv = c.own_kv(i);
    // A mixer is counted as attention in all layers: delta nets have about as many weights.
    mixers += d * (2 * heads + (own_kv ? 2 * kv_heads : 0));
    dense += 3 * d * number(c.moe() && !c.row->dense_beside_experts ? c.shared_ffn : sizes.d_ff);
    if (attends) {
      ModelNeeds::Kv& kv = c.has_window(i) ? n.window_kv : n.token_kv;
      kv.read += 2 * kv_heads * 2;
      if (own_kv) kv.held += 2 * kv_heads * 2;
    }
    recurrent += attends ? 0 : 1;
    widest = std::max(widest, heads);
  }
  const double per_layer = layers * number(c.d_per_layer);
  mixers += 3 * d * per_layer;  // gates, their products, and what embeddings are projected to
  const double experts = c.moe() ? layers * number(c.experts) * 3 * d * number(c.expert_ffn) : 0;
  const double all = (c.tied ? 1 : 2) * embedding + number(c.vocab) * per_layer + mixers + dense + experts;
  const double used = experts > 0 ? experts * number(c.experts_used) / number(c.experts) : 0;
  n.token_weights = all > 0 ? bytes * (embedding + mixers + dense + used) / all : bytes;
  n.window = c.window;
  n.state = recurrent * number(c.value_heads) * number(c.value_dim) * number(c.key_dim) * 4;
  n.step = number(kForecastRows) * 2 * (4 * d + 3 * widest + 4 * per_layer) + 4 * number(c.vocab);
  return n;
}

namespace {

// Of a sequence whose keys and values take so many bytes at most.
int64_t longest_context(const ModelNeeds& needs, double bytes, int64_t most) {
  // As long as all of it lies within the window, or else beside a whole one.
  const int64_t in_window = needs.window + kForecastRows;
  const bool beyond = needs.window_kv.held > 0 && needs.kv_held(in_window) < bytes;
  const double each = needs.token_kv.held + (beyond ? 0 : needs.window_kv.held),
               rest = beyond ? bytes - needs.window_kv.held * static_cast<double>(in_window) : bytes;
  return each > 0 && rest / each < static_cast<double>(most) ? static_cast<int64_t>(rest / each) : most;
}

}  // namespace

Forecast forecast(const ModelNeeds& needs, double scale, const ThisMachine& machine, int64_t context) {
  Forecast f;
  const double rest = needs.weights * scale + needs.state + needs.step, room = static_cast<double>(machine.place.bytes);
  f.needed = rest + needs.kv_held(context);
  f.fits = f.needed <= room;
  const int64_t most = needs.trained_context > 0 ? needs.trained_context : kAnyContext;
  if (rest < room) f.longest_context = longest_context(needs, room - rest, most);
  f.token_bytes = needs.token_weights * scale + needs.state + needs.kv_read(context);
  f.rate = f.token_bytes > 0 ? machine.bandwidth / f.token_bytes : 0;
  return f;
}

void report_machine(const ThisMachine& here, nlohmann::ordered_json* json) {
  if (json != nullptr)
    (*json)["here"] = {{"device", here.device}, {"memory", here.place.bytes}, {"bandwidth", here.bandwidth}};
  else
    print_out("here           {}, {} of memory available, {:.1f} GB/s read\n", here.device,
              human_bytes(static_cast<uint64_t>(here.place.bytes)), here.bandwidth * 1e-9);
}

void report_forecast(const ModelNeeds& needs, const ThisMachine& machine, int64_t context,
                     nlohmann::ordered_json* json) {
  const Forecast f = forecast(needs, 1, machine, context);
  const auto bytes = [](double x) { return human_bytes(static_cast<uint64_t>(x)); };
  std::string why_not = needs.problem;
  if (why_not.empty() && !f.fits) why_not = fmt::format("{} are needed with {} tokens", bytes(f.needed), context);
  if (json != nullptr) {
    nlohmann::ordered_json& out = (*json)["forecast"];
    out = {{"runs", why_not.empty()},
           {"context", context},
           {"needed", f.needed},
           {"longest_context", f.longest_context},
           {"bytes_per_token", f.token_bytes},
           {"tokens_per_second_most", f.rate}};
    if (!why_not.empty()) out["problem"] = why_not;
    return;
  }
  print_out("\nwould it run   {}\n", why_not.empty() ? "yes" : "no: " + escaped(why_not));
  if (!needs.problem.empty()) return;
  print_out("memory         {} with one sequence of {} tokens; up to {} tokens fit\n", bytes(f.needed), context,
            f.longest_context);
  print_out("speed          {:.1f} tokens/s at most: {} are read for each token\n", f.rate, bytes(f.token_bytes));
}

}  // namespace quire::cli
