// How an engine is set up. Every default is declared here, once.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "core/result.h"
#include "engine/speculative_options.h"
#include "model/memory.h"
#include "model/model.h"
#include "ops/gemm/token_rounding.h"

namespace quire {

class LaunchLog;  // engine/launch_log.h

// Kernels for generated tokens. The two round differently, so an engine's texts depend on the choice, as they may
// between machines (docs/numerics.md); the engine's fingerprint says which it was.
enum class Arithmetic {
  kAuto,        // kLatency for up to kFewSequences, else kThroughput
  kLatency,     // integers (or vectors, for BF16 weights): faster for one or two tokens at a time, slower for more
  kThroughput,  // the kernels that prompts take
};
inline constexpr int32_t kFewSequences = 2;

// What a prompt's tokens are when weights of few bits are multiplied with them. The texts depend on it
// (docs/numerics.md), and the engine's fingerprint says it.
enum class PromptActivations {
  kAuto,  // kFp8 or kFp4 where the model's weights were made for it and the device can do it, else kBf16
  kBf16,  // as between operators
  kFp8,   // beside FP8 weights rounded to E4M3, with a scale for each 128 columns of a token
  kFp4,   // beside NVFP4 and MXFP4 weights rounded to E2M1, with a scale for each 16 or 32
};
constexpr TokenRounding token_rounding(PromptActivations a) {
  return a == PromptActivations::kFp8   ? TokenRounding::kE4m3
         : a == PromptActivations::kFp4 ? TokenRounding::kFp4
                                        : TokenRounding::kNone;
}
constexpr std::string_view activations_name(PromptActivations a) {
  constexpr std::string_view kNames[] = {"auto", "bf16", "fp8", "fp4"};
  return kNames[static_cast<size_t>(a)];
}

// What the embedding of a prompt is made of (Request::embed).
enum class Pooling {
  kLast,  // the hidden state of its last token
  kMean,  // the mean of all of its tokens'
};

// Of an engine on the CPU whose options leave them open, where memory allows; a GPU's are in engine/memory_plan.h.
inline constexpr int32_t kDefaultSequences = 16;
inline constexpr int32_t kDefaultBatchTokens = 512;

// Rows of generated tokens and their drafts in a step, where there are any drafts: their logits are large.
inline constexpr int32_t kMostVerifiedRows = 128;

// Devices that one model's layers may lie on.
inline constexpr int kMostStages = 8;

constexpr bool for_latency(Arithmetic a, int32_t max_sequences) {
  return a == Arithmetic::kLatency || (a == Arithmetic::kAuto && max_sequences <= kFewSequences);
}

// What somebody asks for. What is 0 (of state_checkpoints -1) where a comment says so is chosen by resolve()
// (engine/plan.h), from the device, its memory and the model.
struct EngineOptions {
  Device device = Device::kCpu;
  int gpu = 0;  // which one, as `quire devices` counts them
  // The model's layers lie on so many devices, one behind the other (docs/several-gpus.md): GPUs from `gpu` on, or
  // those of stage_gpus, as many; on a CPU devices that share its threads. The texts are the same. `tensor_split`: how
  // much of the weights each has; empty: as their free memory is.
  int pipeline_parallel = 1;
  std::vector<int> stage_gpus;
  std::vector<double> tensor_split;
  // With Device::kCuda: the CPU computes where the model does not fit the GPU, or has no kernels there; a warning says
  // so. Else that is an error.
  bool or_cpu = false;
  int threads = 0;     // 0: all CPUs this process may use
  int host_parts = 1;  // engines of this process: each plans with its part of the host's memory
  // Longest sequence, prompt and output; 0: the model's trained context, or what memory allows if that is less.
  int64_t context = 0;
  // Running at once; others wait. 0: 16, on a GPU up to 256. Fewer where memory does not allow as many.
  int32_t max_sequences = 0;
  int32_t max_waiting = 16384;  // requests beyond the running ones; submit() refuses more
  // Rows of a step: the largest prefill chunk. At least max_sequences, so that every sequence advances in each step. 0:
  // 512, on a GPU 2048. Fewer where memory does not allow as many.
  int32_t max_batch_tokens = 0;
  // Size of the KV pool; 0: max(context, min(max_sequences * context, 64k)) tokens, or what memory allows, on a GPU
  // what is left of its memory.
  int64_t kv_tokens = 0;
  // SchedulerLimits::max_parts; 0: any number, on a GPU, where partial results of attention take memory, what the
  // plan finds room for.
  int64_t decode_parts = 0;
  // What keys and values are kept in: the texts depend on it (docs/numerics.md).
  KvCacheType kv_cache = KvCacheType::kAuto;
  Arithmetic arithmetic = Arithmetic::kAuto;
  PromptActivations activations = PromptActivations::kAuto;  // an engine's plan has one of the others
  // For latency: copy weights to generate faster, if memory allows. The texts are the same.
  bool repack = true;
  double gpu_memory_utilization = 0.9;  // the share of a GPU's memory that may be in use, others' included
  bool graphs = true;  // on a GPU: steps of generated tokens are captured once and replayed. The texts are the same
  int depth = 0;       // steps under way at a time, 1 or 2, with several stages for each of them; 0: 2 on a GPU and
                       // with several stages, else 1. The texts are the same
  int32_t max_logprobs = 1024;  // likeliest tokens that a request may ask for
  // The same for the tokens of a prompt: results have room for so many of every row of a step. -1: of no prompt
  // log-probabilities can be asked for.
  int32_t max_prompt_logprobs = 20;
  int32_t max_logit_bias = 1024;  // biases of one request
  // Memory of the host for the KV blocks of sequences that make room for older ones; 0: none, and sequences wait
  // instead.
  int64_t swap_bytes = 0;
  // Prompts that begin as earlier ones did are not computed again (docs/architecture.md). The texts are the same.
  bool prefix_cache = false;
  // Recurrent states that the prefix cache keeps, each of them a place where a later prompt can go on; -1: four for
  // each sequence. 0: prompts of models with recurrent layers are always computed whole. At most a quarter of
  // what weights and running sequences leave. Of layers that attend to a window: for so many places there are window
  // blocks beside those of running sequences.
  int32_t state_checkpoints = -1;
  // Memory of the host for what the prefix cache has no room for on the device; 0: none, and it is forgotten.
  int64_t prefix_host_bytes = 0;
  // So many tokens at a prompt's end change from turn to turn: the state is saved before them.
  int32_t volatile_tail = 0;
  // After so many steps a waiting request is no longer passed by those that the prefix cache helps.
  int32_t patience_steps = 256;
  // After so many steps of waiting a request lacks half as much to the best priority (at least 1), which is this one:
  // no request should have a better one.
  int32_t ageing_steps = 1024;
  int32_t top_priority = 0;
  // When so many prompts wait for their first token, steps compute them before generated tokens; 0: never. The texts
  // are the same.
  int32_t first_token_threshold = 0;
  // For kMean, results have room for the hidden states of a whole step; for kLast, for one of each sequence.
  Pooling pooling = Pooling::kLast;
  // Drafts that are verified beside generated tokens. The texts are the same.
  SpeculativeOptions speculative;
  uint64_t shuffle_blocks = 0;  // not 0: hand out KV blocks in this random order (tests)
  KernelChoice kernels;
  LaunchLog* launches = nullptr;  // not null: is told what the kernels of a GPU's steps belong to; outlives the engine
  LayerProbe probe;               // not empty: sees every step's intermediates, on the thread that computes

  int gpu_of_stage(int i) const { return stage_gpus.empty() ? gpu + i : stage_gpus[static_cast<size_t>(i)]; }

  // Whether the CPU computes where an engine on the GPU could not be made for this reason. A damaged file is as damaged
  // for a CPU, and a mistake of ours is to be heard of.
  bool cpu_instead(Fault f) const {
    return device == Device::kCuda && or_cpu && (f == Fault::kRequest || f == Fault::kCapacity);
  }
};

// Whether the options make sense as far as that is known without the device's memory.
Status check_options(const EngineOptions& options, const ModelConfig& model);

}  // namespace quire
