// What a server's memory is for: a line at the start, and gauges.
#pragma once

#include <span>
#include <string>

#include "constraint/grammar_cache.h"
#include "engine/engine.h"
#include "server/http_server.h"
#include "server/metrics.h"
#include "server/response_store.h"

namespace quire::server {

// Compiled grammars are kept in a part of the memory that there is.
GrammarCacheOptions within_memory(GrammarCacheOptions grammars);

// What the process comes to hold, part by part.
// `engines`: those that serve the model, in the order of their numbers.
std::string memory_line(std::span<const Engine* const> engines, const GrammarCacheOptions& grammars,
                        const HttpServerOptions& http, const ResponseStoreOptions& responses);

// quire:memory_bytes and quire:memory_limit_bytes: what there is now of each part, and what it comes to.
void measure_memory(std::span<const Engine* const> engines, const GrammarCacheOptions& grammars, const HttpServer& http,
                    const ResponseStoreOptions& responses, Registry& registry);

}  // namespace quire::server
