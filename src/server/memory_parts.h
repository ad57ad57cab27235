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

// Bytes of decoded pictures: what there is now, and what it comes to; 0: the model takes none.
struct PictureBytes {
  size_t held = 0, most = 0;
};

// What the process comes to hold, part by part.
// `engines`: those that serve the model, in the order of their numbers.
std::string memory_line(std::span<const Engine* const> engines, const GrammarCacheOptions& grammars,
                        const HttpServerOptions& http, const ResponseStoreOptions& responses,
                        const PictureBytes& pictures);

// quire:memory_bytes and quire:memory_limit_bytes: what there is now of each part, and what it comes to.
void measure_memory(std::span<const Engine* const> engines, const GrammarCacheOptions& grammars, const HttpServer& http,
                    const ResponseStoreOptions& responses, const PictureBytes& pictures, Registry& registry);

}  // namespace quire::server
