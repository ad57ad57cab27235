#include "engine/options.h"

#include <algorithm>

namespace quire {

Status check_options(const EngineOptions& o, const ModelConfig& c) {
  if (o.threads < 0 || o.threads > 1024) return request_error("{} threads: must be between 1 and 1024", o.threads);
  if (o.gpu < 0) return request_error("GPU {}: they are counted from 0", o.gpu);
  if (o.pipeline_parallel < 1 || o.pipeline_parallel > kMostStages)
    return request_error("{} pipeline stages: must be between 1 and {}", o.pipeline_parallel, kMostStages);
  if (o.pipeline_parallel > c.layers)
    return request_error("{} pipeline stages: the model has {} layers, and each stage needs one", o.pipeline_parallel,
                         c.layers);
  if (!o.tensor_split.empty() && std::ssize(o.tensor_split) != o.pipeline_parallel)
    return request_error("a split of {} numbers, and {} pipeline stages: one is needed for each", o.tensor_split.size(),
                         o.pipeline_parallel);
  for (const double part : o.tensor_split)
    if (!(part > 0.0 && part <= 1e9)) return request_error("{} of a split: must be above 0", part);
  if (o.pipeline_parallel > 1 && (o.probe || o.launches != nullptr))
    return request_error("with several pipeline stages, intermediates and launches are not told");
  if (o.context < 0 || o.context > c.context_length)
    return request_error("a context of {} tokens: the model was trained for 1 to {}", o.context, c.context_length);
  if (o.max_sequences < 0 || o.max_sequences > 4096)
    return request_error("{} sequences: must be between 1 and 4096", o.max_sequences);
  if (o.max_waiting < 1) return request_error("a queue of {} requests: must be at least 1", o.max_waiting);
  const int32_t least = std::max(kChunkTokens, o.max_sequences);
  if (o.max_batch_tokens != 0 && (o.max_batch_tokens < least || o.max_batch_tokens > 65536))
    return request_error("{} batch tokens: must be between {} and 65536{}", o.max_batch_tokens, least,
                         least > kChunkTokens ? ", a row for each sequence that may run" : "");
  if (o.depth < 0 || o.depth > 2) return request_error("a depth of {} steps: must be 1 or 2", o.depth);
  if (!(o.gpu_memory_utilization > 0.0 && o.gpu_memory_utilization <= 1.0))
    return request_error("{} of a GPU's memory: must be above 0 and at most 1", o.gpu_memory_utilization);
  if (o.max_logprobs < 0 || o.max_logprobs > 65536)
    return request_error("{} logprobs: must be between 0 and 65536", o.max_logprobs);
  if (o.max_prompt_logprobs < -1 || o.max_prompt_logprobs > 1024)
    return request_error("{} logprobs of a prompt's tokens: must be between -1 (none) and 1024", o.max_prompt_logprobs);
  if (o.max_logit_bias < 0 || o.max_logit_bias > 65536)
    return request_error("{} logit biases: must be between 0 and 65536", o.max_logit_bias);
  if (o.swap_bytes < 0) return request_error("{} bytes of swap space: must not be negative", o.swap_bytes);
  if (o.state_checkpoints > 65536) return request_error("{} saved states: must be at most 65536", o.state_checkpoints);
  if (o.prefix_host_bytes < 0)
    return request_error("{} bytes of the host for the prefix cache: must not be negative", o.prefix_host_bytes);
  if (o.speculative.tokens < 1 || o.speculative.tokens > kMostDrafts)
    return request_error("{} drafts of a sequence in a step: must be between 1 and {}", o.speculative.tokens,
                         kMostDrafts);
  if (o.volatile_tail < 0) return request_error("a volatile tail of {} tokens: must not be negative", o.volatile_tail);
  if (o.patience_steps < 0) return request_error("a patience of {} steps: must not be negative", o.patience_steps);
  if (o.ageing_steps < 1) return request_error("ageing after {} steps: must be at least 1", o.ageing_steps);
  if (o.first_token_threshold < 0)
    return request_error("a threshold of {} waiting prompts: must not be negative", o.first_token_threshold);
  if (o.kv_tokens != 0 && (o.kv_tokens < std::max<int64_t>(o.context, 1) || o.kv_tokens > (int64_t{1} << 34)))
    return request_error("a KV pool of {} tokens cannot hold one sequence of {}", o.kv_tokens,
                         std::max<int64_t>(o.context, 1));
  return {};
}

}  // namespace quire
