#include "server/memory_parts.h"

#include <algorithm>

#include "core/heap.h"
#include "core/memory.h"

namespace quire::server {
namespace {

// What the caches come to when all of them are used: by pool, and what of them makes room on the device.
struct CacheBytes {
  std::vector<std::pair<std::string, int64_t>> pools;
  int64_t host = 0;

  int64_t on_device() const {
    int64_t sum = 0;
    for (const auto& [name, bytes] : pools) sum += bytes;
    return sum;
  }
};

// Engines of one model have the same pools.
CacheBytes cache_bytes(std::span<const Engine* const> engines) {
  CacheBytes all;
  for (const CachePoolSpec& pool : engines.front()->pools()) all.pools.emplace_back(pool.name, 0);
  for (const Engine* const engine : engines) {
    all.host += engine->plan().swap_bytes + engine->plan().prefix_host_bytes;
    const PoolCounts& units = engine->units();
    for (size_t i = 0; i < units.size(); ++i) all.pools[i].second += units[i] * engine->pools()[i].bytes;
  }
  return all;
}

// Of all engines together. What is mapped, and what the loader made of it, they have in common.
MemoryUse memory_of(std::span<const Engine* const> engines) {
  MemoryUse all = engines.front()->memory();
  for (const Engine* const engine : engines.subspan(1)) {
    const MemoryUse m = engine->memory();
    all.repacked += m.repacked;
    all.workspace += m.workspace;
    all.kv_and_state += m.kv_and_state;
  }
  return all;
}

}  // namespace

GrammarCacheOptions within_memory(GrammarCacheOptions grammars) {
  constexpr int64_t kPart = 8, kLeast = int64_t{8} << 20;
  const int64_t most = std::max(kLeast, available_memory() / kPart);
  grammars.cache_bytes = std::min(grammars.cache_bytes, most);
  // Of each process that compiles one: some at a time.
  constexpr int64_t kLeastToCompile = int64_t{64} << 20;
  grammars.limits.memory = std::min(grammars.limits.memory, std::max(kLeastToCompile, most));
  return grammars;
}

std::string memory_line(std::span<const Engine* const> engines, const GrammarCacheOptions& grammars,
                        const HttpServerOptions& http, const ResponseStoreOptions& responses,
                        const PictureBytes& pictures) {
  const MemoryUse m = memory_of(engines);
  const CacheBytes caches = cache_bytes(engines);
  std::string s = "memory: ";
  const auto add = [&](const char* what, int64_t bytes) {
    if (bytes <= 0) return;
    s += fmt::format("{}{} {:.1f} MiB", s.ends_with(' ') ? "" : ", ", what,
                     static_cast<double>(bytes) / static_cast<double>(1 << 20));
  };
  const bool gpu = engines.front()->plan().device == Device::kCuda;
  add(gpu ? "weights on the GPU" : "weights", gpu ? m.repacked : m.mapped + m.converted + m.repacked);
  add("scratch", m.workspace);
  // A GPU's are allocated when the engine is made, a CPU's are backed as they are touched.
  for (const auto& [name, bytes] : caches.pools)
    add(fmt::format("{} cache{}", name, gpu ? "" : " up to").c_str(), bytes);
  add("what made room for others up to", caches.host);
  add("grammars up to", grammars.cache_bytes);
  add("bodies of requests up to", static_cast<int64_t>(http.max_total_body_bytes));
  add("responses up to", static_cast<int64_t>(responses.max_bytes));
  add("pictures up to", static_cast<int64_t>(pictures.most));
  return s;
}

void measure_memory(std::span<const Engine* const> engines, const GrammarCacheOptions& grammars, const HttpServer& http,
                    const ResponseStoreOptions& responses, const PictureBytes& pictures, Registry& registry) {
  const auto part = [&](const char* name, int64_t bytes, int64_t most) {
    const Labels labels = {{"part", name}};
    registry.gauge("quire:memory_bytes", "Memory that the process holds, by what it is for.", labels)
        .set(static_cast<double>(bytes));
    if (most <= 0) return;
    registry.gauge("quire:memory_limit_bytes", "What a part of the memory comes to at most.", labels)
        .set(static_cast<double>(most));
  };
  const MemoryUse m = memory_of(engines);
  const CacheBytes caches = cache_bytes(engines);
  const HeapUse heap = heap_use();
  part("weights_mapped", m.mapped, m.mapped);
  part("weights_made", m.converted + m.repacked, m.converted + m.repacked);
  part("scratch", m.workspace, m.workspace);
  part("caches", m.kv_and_state, caches.on_device());
  part("grammars", static_cast<int64_t>(registry.gauge("quire:grammar_cache_bytes", "").value()), grammars.cache_bytes);
  part("bodies", static_cast<int64_t>(http.held_body_bytes()), static_cast<int64_t>(http.max_body_bytes()));
  part("responses", static_cast<int64_t>(registry.gauge("quire:response_store_bytes", "").value()),
       static_cast<int64_t>(responses.max_bytes));
  if (pictures.most > 0) part("pictures", static_cast<int64_t>(pictures.held), static_cast<int64_t>(pictures.most));
  part("heap", heap.used, 0);
  part("heap_free", heap.free, 0);
}

}  // namespace quire::server
