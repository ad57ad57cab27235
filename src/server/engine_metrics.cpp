#include "server/engine_metrics.h"

namespace quire::server {
namespace {

const std::vector<double> kFirstToken = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,  0.25,  0.5,   0.75,
                                         1.0,   2.5,   5.0,  7.5,  10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0};
const std::vector<double> kPerToken = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2,  0.3,  0.4, 0.5,
                                       0.75, 1.0,   2.5,  5.0,   7.5, 10.0, 20.0, 40.0, 80.0};
const std::vector<double> kLatency = {0.3,  0.5,  0.8,  1.0,  1.5,   2.0,   2.5,   5.0,   10.0,   15.0,  20.0,
                                      30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0};
const std::vector<double> kIteration = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
const std::vector<double> kAnswers = {1, 2, 5, 10, 20};
const std::vector<double> kStepTokens = {0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};
const std::vector<double> kWaiting = {0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000};
const std::vector<double> kShare = {0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1};
const std::vector<double> kStepTime = {0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025,
                                       0.005,   0.01,     0.025,   0.05,   0.1,     0.25,   0.5,   1.0};

Labels with(Labels labels, std::string key, std::string value) {
  labels.emplace_back(std::move(key), std::move(value));
  return labels;
}

Counter& success(Registry& r, const Labels& labels, const char* reason) {
  return r.counter("vllm:request_success_total", "Requests that ended, by how.",
                   with(labels, "finished_reason", reason));
}

std::array<Counter*, kPrefixMisses> miss_counters(Registry& r, const Labels& labels) {
  std::array<Counter*, kPrefixMisses> all{};
  for (int i = 1; i < kPrefixMisses; ++i)
    all[static_cast<size_t>(i)] =
        &r.counter("quire:prefix_cache_misses_total", "Prompts that were not found whole, by why no more was found.",
                   with(labels, "reason", std::string(prefix_miss_name(static_cast<PrefixMiss>(i)))));
  return all;
}

std::array<Counter*, kMostDrafts> depth_counters(Registry& r, const Labels& labels) {
  std::array<Counter*, kMostDrafts> all{};
  for (size_t i = 0; i < all.size(); ++i)
    all[i] = &r.counter("vllm:spec_decode_num_accepted_tokens_per_pos_total", "Drafts that were right, by depth.",
                        with(labels, "position", std::to_string(i)));
  return all;
}

std::array<Counter*, kDeferrals> deferral_counters(Registry& r, const Labels& labels) {
  std::array<Counter*, kDeferrals> all{};
  for (int i = 0; i < kDeferrals; ++i)
    all[static_cast<size_t>(i)] =
        &r.counter("quire:step_deferrals_total", "Steps in which requests went on waiting, by why.",
                   with(labels, "reason", std::string(deferral_name(static_cast<Deferral>(i)))));
  return all;
}

Counter& swapped(Registry& r, const Labels& labels, const char* direction) {
  return r.counter("quire:swapped_blocks_total", "KV blocks that moved to the host's memory (out) and back (in).",
                   with(labels, "direction", direction));
}

std::vector<EngineMetrics::Pool> pool_gauges(Registry& r, const Labels& labels, const CachePools& caches) {
  std::vector<EngineMetrics::Pool> all;
  for (const CachePoolSpec& pool : caches) {
    const Labels of = with(labels, "pool", pool.name);
    all.push_back(
        {r.gauge("quire:cache_usage_perc",
                 "Share of a kind of cache (blocks of keys and values, those of windows, recurrent states) "
                 "that running requests use; 1 is all.",
                 of),
         r.gauge("quire:prefix_cache_idle_units", "Blocks, or states, that are kept to be found and in no use.", of)});
  }
  return all;
}

}  // namespace

EngineMetrics::EngineMetrics(Registry& r, const std::string& model_name, int64_t max_model_len,
                             const CachePools& caches, int engine)
    : labels{{"model_name", model_name}, {"engine", std::to_string(engine)}},
      running(r.gauge("vllm:num_requests_running", "Requests that the engine works on.", labels)),
      waiting(r.gauge("vllm:num_requests_waiting", "Requests that wait for a place.", labels)),
      kv_usage(
          r.gauge("vllm:kv_cache_usage_perc", "Share of the KV cache that running requests use; 1 is all.", labels)),
      prompt_tokens(r.counter("vllm:prompt_tokens_total", "Tokens of prompts computed.", labels)),
      generation_tokens(r.counter("vllm:generation_tokens_total", "Tokens generated.", labels)),
      preemptions(r.counter("vllm:num_preemptions_total", "Requests put off after they had started.", labels)),
      prefix_queries(
          r.counter("vllm:prefix_cache_queries_total", "Tokens of prompts looked up in the prefix cache.", labels)),
      prefix_hits(r.counter("vllm:prefix_cache_hits_total", "Of them, tokens that were found.", labels)),
      prefix_misses(miss_counters(r, labels)),
      drafted_sequences(r.counter("vllm:spec_decode_num_drafts_total",
                                  "Times that tokens of an answer were drafted, of any number.", labels)),
      draft_tokens(r.counter("vllm:spec_decode_num_draft_tokens_total", "Drafts that were verified.", labels)),
      accepted_tokens(r.counter("vllm:spec_decode_num_accepted_tokens_total", "Drafts that were right.", labels)),
      accepted_at(depth_counters(r, labels)),
      swapped_out(swapped(r, labels, "out")),
      swapped_in(swapped(r, labels, "in")),
      pools(pool_gauges(r, labels, caches)),
      host_usage(r.gauge("vllm:kv_offload_cpu_cache_usage_perc",
                         "Share of the prefix cache's memory on the host that is in use; 1 is all.", labels)),
      host_states(r.gauge("quire:prefix_cache_host_states", "Recurrent states that are kept on the host.", labels)),
      host_stored_bytes(
          r.counter("vllm:kv_offload_store_bytes_total", "Bytes of the prefix cache that moved to the host.", labels)),
      host_loaded_bytes(r.counter("vllm:kv_offload_load_bytes_total",
                                  "Bytes of the prefix cache that came back from the host.", labels)),
      host_hits(r.counter("quire:prefix_cache_host_hits_total",
                          "Tokens of prompts whose blocks came back from the host.", labels)),
      stopped(success(r, labels, "stop")),
      reached_length(success(r, labels, "length")),
      aborted(success(r, labels, "abort")),
      failed(success(r, labels, "error")),
      request_prompt_tokens(r.histogram("vllm:request_prompt_tokens", "Tokens of a request's prompt.",
                                        buckets_1_2_5(max_model_len), labels)),
      request_generation_tokens(r.histogram("vllm:request_generation_tokens", "Tokens generated for a request.",
                                            buckets_1_2_5(max_model_len), labels)),
      iteration_tokens(r.histogram("vllm:iteration_tokens_total", "Tokens of one step.", kIteration, labels)),
      params_n(r.histogram("vllm:request_params_n", "Answers asked for to one prompt.", kAnswers, labels)),
      params_max_tokens(r.histogram("vllm:request_params_max_tokens", "The most tokens a request may generate.",
                                    buckets_1_2_5(max_model_len), labels)),
      first_token(
          r.histogram("vllm:time_to_first_token_seconds", "From arrival to the first token.", kFirstToken, labels)),
      inter_token(r.histogram("vllm:inter_token_latency_seconds", "From one token of a request to its next.", kPerToken,
                              labels)),
      time_per_output_token(r.histogram("vllm:request_time_per_output_token_seconds",
                                        "Mean time from token to token, per request.", kPerToken, labels)),
      latency(r.histogram("vllm:e2e_request_latency_seconds", "From arrival to the end.", kLatency, labels)),
      queue_time(r.histogram("vllm:request_queue_time_seconds", "From arrival to the engine.", kLatency, labels)),
      inference_time(
          r.histogram("vllm:request_inference_time_seconds", "From the engine to the end.", kLatency, labels)),
      prefill_time(
          r.histogram("vllm:request_prefill_time_seconds", "From the engine to the first token.", kLatency, labels)),
      decode_time(
          r.histogram("vllm:request_decode_time_seconds", "From the first token to the end.", kLatency, labels)),
      steps(r.counter("quire:engine_steps_total", "Steps of the engine.", labels)),
      rejected(r.counter("quire:requests_rejected_total", "Requests refused because the queue was full.", labels)),
      step_decodes(
          r.histogram("quire:step_decode_rows", "Generated tokens that one step computed.", kStepTokens, labels)),
      step_prompt_tokens(
          r.histogram("quire:step_prompt_tokens", "Tokens of prompts that one step computed.", kStepTokens, labels)),
      step_waiting(r.histogram("quire:step_waiting_requests", "Requests that a step left waiting.", kWaiting, labels)),
      step_free_blocks(r.histogram("quire:step_free_blocks_perc",
                                   "Share of the KV cache that no request uses, in one step; 1 is all.", kShare,
                                   labels)),
      step_host_time(r.histogram("quire:step_host_seconds",
                                 "Time of the engine's thread for one step: planning, laying out, committing.",
                                 kStepTime, labels)),
      step_device_time(r.histogram("quire:step_device_seconds", "Time to compute one step.", kStepTime, labels)),
      deferred(deferral_counters(r, labels)),
      skipped(r.counter("quire:step_skipped_tokens_total",
                        "Generated tokens that were put off for prompts without a first token.", labels)),
      masks(r.counter("quire:constrained_tokens_total", "Tokens, drafts among them, that were sampled under a mask.",
                      labels)),
      mask_seconds(r.counter("quire:mask_seconds_total", "Time to compute those masks.", labels)),
      mask_waits(r.counter("quire:mask_waited_steps_total", "Steps in which the device waited for masks.", labels)),
      slow_masks(r.counter("quire:slow_masks_total",
                           "Masks that took long: their requests waited, and steps went on without them.", labels)) {}

void EngineMetrics::observe(const StepRecord& s) {
  steps.add();
  iteration_tokens.observe(s.prompt_rows + s.decode_rows);
  step_decodes.observe(s.decode_rows);
  step_prompt_tokens.observe(s.prompt_rows);
  step_waiting.observe(s.waiting);
  const PoolUse& kv = s.pools[kKvPool];
  step_free_blocks.observe(kv.total() > 0 ? 1.0 - static_cast<double>(kv.used) / kv.total() : 1.0);
  step_host_time.observe(s.host_seconds);
  step_device_time.observe(s.device_seconds);
  for (size_t i = 0; i < deferred.size(); ++i)
    if (s.deferred[i] > 0) deferred[i]->add();
  if (s.skipped > 0) skipped.add(s.skipped);
  if (s.masks > 0) masks.add(s.masks), mask_seconds.add(s.mask_seconds);
  if (s.waited_for_masks) mask_waits.add();
  if (s.slow_masks > 0) slow_masks.add(s.slow_masks);
}

Counter& EngineMetrics::finished(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return stopped;
    case FinishReason::kLength:
      return reached_length;
    case FinishReason::kCancelled:
      return aborted;
    case FinishReason::kNone:
    case FinishReason::kError:
      break;
  }
  return failed;
}

EngineLoad read_load(Registry& registry, const std::string& model_name, int engine) {
  const auto value = [&](const char* name) {
    return registry.gauge(name, "", {{"model_name", model_name}, {"engine", std::to_string(engine)}}).value();
  };
  return {.running = static_cast<int64_t>(value("vllm:num_requests_running")),
          .waiting = static_cast<int64_t>(value("vllm:num_requests_waiting")),
          .kv_usage = value("vllm:kv_cache_usage_perc")};
}

}  // namespace quire::server
