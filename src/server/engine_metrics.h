// What is measured of an engine's work. Names, types and buckets are vLLM's where they mean the same (its
// vllm/v1/metrics/loggers.py), so that dashboards made for it work; docs/server.md has the table.
#pragma once

#include <array>
#include <string>

#include "cache/prefix_cache.h"
#include "engine/request.h"
#include "engine/step_record.h"
#include "server/metrics.h"

namespace quire::server {

struct EngineMetrics {
  // `max_model_len`: the longest sequence, which bounds the buckets of token counts. `engine`: which one it is of those
  // that serve the model.
  EngineMetrics(Registry& registry, const std::string& model_name, int64_t max_model_len, const CachePools& pools,
                int engine = 0);

  // What a step did.
  void observe(const StepRecord& step);
  // How many requests ended in this way: "stop", "length", "abort" or "error".
  Counter& finished(FinishReason reason);

  Labels labels;
  Gauge &running, &waiting, &kv_usage;
  Counter &prompt_tokens, &generation_tokens, &preemptions;
  Counter &prefix_queries, &prefix_hits;
  std::array<Counter*, kPrefixMisses> prefix_misses;  // by why no more was found; null where nothing was missed
  Counter &drafted_sequences, &draft_tokens, &accepted_tokens;
  std::array<Counter*, kMostDrafts> accepted_at;  // by depth
  Counter &swapped_out, &swapped_in;
  struct Pool {
    Gauge &usage, &cached;
  };
  std::vector<Pool> pools;          // of the caches
  Gauge &host_usage, &host_states;  // of the prefix cache
  Counter &host_stored_bytes, &host_loaded_bytes, &host_hits;
  Counter &stopped, &reached_length, &aborted, &failed;
  Histogram &request_prompt_tokens, &request_generation_tokens, &iteration_tokens, &params_n, &params_max_tokens;
  Histogram &first_token, &inter_token, &time_per_output_token;
  Histogram &latency, &queue_time, &inference_time, &prefill_time, &decode_time;
  Counter &steps, &rejected;
  Histogram &step_decodes, &step_prompt_tokens, &step_waiting, &step_free_blocks, &step_host_time, &step_device_time;
  std::array<Counter*, kDeferrals> deferred;  // steps, by why requests went on waiting
  Counter& skipped;
  Counter &masks, &mask_seconds, &mask_waits, &slow_masks;
};

// What an engine has to do just now, as its metrics tell it.
struct EngineLoad {
  int64_t running = 0, waiting = 0;  // answers
  double kv_usage = 0.0;             // share of the KV cache that running answers use
};
EngineLoad read_load(Registry& registry, const std::string& model_name, int engine);

}  // namespace quire::server
