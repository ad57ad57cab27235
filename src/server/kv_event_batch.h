// Events of a prefix cache as routers read them: MessagePack, in one of the forms that vLLM has had.
#pragma once

#include <span>
#include <string>

#include "cache/kv_event.h"

namespace quire::server {

enum class KvEventFormat {
  kArrays,  // batches and events are arrays of their fields' values
  kTagged,  // batches are arrays, events are maps with a `type`
  kMaps,    // both are maps
};

// KVEventBatch of vLLM: `time` in seconds since 1970, `rank` the engine's number. Chunks that follow each other are one
// BlockStored; so are those that go one BlockRemoved.
std::string kv_event_batch(std::span<const KvEvent> events, double time, int rank, KvEventFormat format);

}  // namespace quire::server
