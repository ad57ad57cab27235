#include "server/kv_event_batch.h"

#include <iterator>
#include <utility>

#include "server/protocol/json.h"

namespace quire::server {
namespace {

// Where prompts are gone on from, whatever it is: routers take other names for slower memory, and what lies on the host
// comes back by itself.
constexpr char kMedium[] = "GPU";

using EventFields = std::vector<std::pair<const char*, Json>>;

Json object_of(EventFields fields, bool map) {
  Json all = map ? Json::object() : Json::array();
  for (auto& [name, value] : fields) {
    if (map)
      all[name] = std::move(value);
    else
      all.push_back(std::move(value));
  }
  return all;
}

// How many of the events are one of the reader's.
size_t length_of_run(std::span<const KvEvent> events) {
  size_t n = 1;
  const KvEvent& first = events.front();
  if (first.kind == KvEvent::Kind::kCleared) return n;
  for (; n < events.size() && events[n].kind == first.kind; ++n)
    if (first.kind == KvEvent::Kind::kStored && events[n].parent != events[n - 1].hash) break;
  return n;
}

Json hashes_of(std::span<const KvEvent> run) {
  Json hashes = Json::array();
  for (const KvEvent& e : run) hashes.push_back(e.hash);
  return hashes;
}

EventFields stored(std::span<const KvEvent> run) {
  const KvEvent& first = run.front();
  Json tokens = Json::array();
  for (const KvEvent& e : run)
    for (int32_t t = 0; e.has_tokens && t < kChunkTokens; ++t) tokens.push_back(e.tokens[static_cast<size_t>(t)]);
  return {{"type", "BlockStored"},
          {"block_hashes", hashes_of(run)},
          {"parent_block_hash", first.parent ? Json(*first.parent) : Json()},
          {"token_ids", std::move(tokens)},
          {"block_size", kChunkTokens},
          {"lora_id", Json()},
          {"medium", kMedium},
          {"lora_name", Json()}};
}

EventFields fields_of(std::span<const KvEvent> run) {
  switch (run.front().kind) {
    case KvEvent::Kind::kStored:
      return stored(run);
    case KvEvent::Kind::kRemoved:
      return {{"type", "BlockRemoved"}, {"block_hashes", hashes_of(run)}, {"medium", kMedium}};
    case KvEvent::Kind::kCleared:
      break;
  }
  return {{"type", "AllBlocksCleared"}};
}

}  // namespace

std::string kv_event_batch(std::span<const KvEvent> events, double time, int rank, KvEventFormat format) {
  Json all = Json::array();
  while (!events.empty()) {
    const size_t n = length_of_run(events);
    all.push_back(object_of(fields_of(events.first(n)), format != KvEventFormat::kArrays));
    events = events.subspan(n);
  }
  const Json batch = object_of({{"ts", time}, {"events", std::move(all)}, {"data_parallel_rank", rank}},
                               format == KvEventFormat::kMaps);
  std::string bytes;
  Json::to_msgpack(batch, bytes);
  return bytes;
}

}  // namespace quire::server
