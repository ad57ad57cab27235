#include "server/start_engines.h"

#include <algorithm>
#include <thread>

#include "core/cpu.h"

namespace quire::server {
namespace {

// What each of so many engines on this host gets.
EngineOptions share_of(EngineOptions o, int engines) {
  o.swap_bytes /= engines;
  o.prefix_host_bytes /= engines;
  o.host_parts = engines;
  if (o.device != Device::kCuda) {
    const int threads = o.threads > 0 ? o.threads : available_cpus();
    o.threads = std::max(1, threads / engines);
  }
  return o;
}

}  // namespace

Result<std::vector<std::unique_ptr<Engine>>> create_engines(const std::shared_ptr<const LoadedModel>& model,
                                                            const EngineOptions& options,
                                                            const std::vector<int>& gpus) {
  const auto each = static_cast<size_t>(options.pipeline_parallel), count = gpus.size() / each;
  std::vector<int> once;
  for (size_t i = 0; i < count; ++i) {
    // A split over one GPU is of no use but to try it, and does no harm.
    std::vector<int> own(gpus.begin() + static_cast<std::ptrdiff_t>(i * each),
                         gpus.begin() + static_cast<std::ptrdiff_t>((i + 1) * each));
    std::ranges::sort(own);
    own.erase(std::unique(own.begin(), own.end()), own.end());
    once.insert(once.end(), own.begin(), own.end());
  }
  std::ranges::sort(once);
  if (const auto twice = std::ranges::adjacent_find(once); options.device == Device::kCuda && twice != once.end())
    return request_error("GPU {} is named twice: an engine has its GPUs for itself", *twice);
  std::vector<Result<std::unique_ptr<Engine>>> made;
  for (size_t i = 0; i < count; ++i) made.emplace_back(Error{});
  const auto make = [&](size_t i) {
    EngineOptions o = count == 1 ? options : share_of(options, static_cast<int>(count));
    o.gpu = gpus[i * each];
    o.stage_gpus.assign(gpus.begin() + static_cast<std::ptrdiff_t>(i * each),
                        gpus.begin() + static_cast<std::ptrdiff_t>((i + 1) * each));
    made[i] = Engine::create(model, std::move(o));
  };
  if (options.device == Device::kCuda && count > 1) {
    std::vector<std::thread> makers;
    for (size_t i = 0; i < count; ++i) makers.emplace_back(make, i);
    for (std::thread& t : makers) t.join();
  } else {
    for (size_t i = 0; i < count; ++i) make(i);
  }
  std::vector<std::unique_ptr<Engine>> engines;
  for (size_t i = 0; i < count; ++i) {
    if (!made[i].ok())
      return count == 1 ? made[i].error() : Error(made[i].error()).context(fmt::format("engine {}", i));
    engines.push_back(std::move(made[i]).value());
    if (engines.back()->fingerprint() != engines.front()->fingerprint())
      return request_error(
          "engine {} would give other texts than engine 0 ({} and {}): a server's engines have to be alike", i,
          engines.back()->fingerprint(), engines.front()->fingerprint());
  }
  return engines;
}

Capacity capacity_of(const std::vector<std::unique_ptr<Engine>>& engines) {
  Capacity all{.context = engines.front()->context()};
  for (const auto& engine : engines) {
    all.context = std::min(all.context, engine->context());
    all.sequences += engine->plan().max_sequences;
    all.kv_tokens += engine->plan().kv_tokens;
  }
  return all;
}

}  // namespace quire::server
