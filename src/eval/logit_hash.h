// A hash of the bits of a model's logits: two programs, or two machines, that give the same one compute the same.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "engine/loaded_model.h"
#include "engine/options.h"

namespace quire {

struct LogitHashOptions {
  Device device = Device::kCpu;
  int gpu = 0;
  int threads = 2;                                  // the hash does not depend on it
  Arithmetic arithmetic = Arithmetic::kThroughput;  // of generated tokens; a GPU has that one only
  KvCacheType kv_cache = KvCacheType::kBf16;
};

// Of the logits of 64 fixed prompt tokens, and then of 64 tokens that are generated (on a GPU: the same tokens again,
// by the kernels of generated ones).
Result<uint64_t> logit_hash(const std::shared_ptr<const LoadedModel>& model, const LogitHashOptions& options);

// How tests/data/numerics/hashes.txt names a machine: "avx2+avx_vnni", "cuda+sm_90", and with
// "+mma.sync" where the program has no code for wgmma. ARM's bits are those of "avx2" up to the level i8mm; with bf16,
// whose products of BF16 weights are others, ARM is "avx2+bfmmla".
std::string numerics_machine(const Machine& machine);

}  // namespace quire
