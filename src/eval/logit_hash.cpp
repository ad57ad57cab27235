#include "eval/logit_hash.h"

#include <algorithm>

#include "core/hash.h"
#include "engine/engine.h"
#include "eval/scorer.h"

namespace quire {
namespace {

constexpr int64_t kPrompt = 64, kGenerated = 64;

std::vector<TokenId> prompt_for(const LoadedModel& model) {
  std::vector<TokenId> tokens;
  for (int64_t i = 0; i < kPrompt; ++i)
    tokens.push_back(static_cast<TokenId>(i * i * 7919 % model.model->config().vocab));
  return tokens;
}

uint64_t add_logits(uint64_t h, std::span<const float> logits) {
  return fnv1a(h, logits.data(), logits.size_bytes());
}

// Logits of every token of a text, by the kernels of prompts or of generated tokens.
Result<uint64_t> score(uint64_t h, const std::shared_ptr<const LoadedModel>& model, const LogitHashOptions& o,
                       bool generated) {
  QUIRE_TRY(const std::unique_ptr<Scorer> scorer, Scorer::create(model, {.device = o.device,
                                                                         .gpu = o.gpu,
                                                                         .threads = o.threads,
                                                                         .window = kPrompt,
                                                                         .kv_cache = o.kv_cache,
                                                                         .generated = generated}));
  QUIRE_CHECKED(
      scorer->run(prompt_for(*model), [&](int64_t, std::span<const float> logits) { h = add_logits(h, logits); }));
  return h;
}

// Logits that an engine's generated tokens are drawn from.
Result<uint64_t> generate(uint64_t h, const std::shared_ptr<const LoadedModel>& model, const LogitHashOptions& o) {
  EngineOptions options{
      .threads = o.threads, .context = kPrompt + kGenerated, .max_sequences = 1, .kv_cache = o.kv_cache};
  options.arithmetic = o.arithmetic;
  options.probe = [&](std::string_view name, int, const Tensor& x) {
    if (name != "logits") return;
    for (int64_t row = 0; row < x.dim(0); ++row)
      h = add_logits(h, {x.as<float>() + row * x.stride[0], static_cast<size_t>(x.dim(1))});
  };
  QUIRE_TRY(const std::unique_ptr<Engine> engine, Engine::create(model, std::move(options)));
  Request request;
  request.prompt = prompt_for(*model);
  request.max_tokens = kGenerated;
  request.ignore_eos = true;
  QUIRE_TRY([[maybe_unused]] const RequestId id, engine->submit(std::move(request), [](const TokenEvent&) {}));
  while (engine->busy()) engine->step();
  return h;
}

}  // namespace

Result<uint64_t> logit_hash(const std::shared_ptr<const LoadedModel>& model, const LogitHashOptions& o) {
  QUIRE_TRY(const uint64_t prompts, score(kFnvStart, model, o, false));
  return o.device == Device::kCuda ? score(prompts, model, o, true) : generate(prompts, model, o);
}

std::string numerics_machine(const Machine& machine) {
  if (machine.device == Device::kCuda)
    return fmt::format("cuda+sm_{}{}{}", machine.gpu.major, machine.gpu.minor, machine.gpu.wgmma ? "" : "+mma.sync");
  if (kOnArm) return machine.cpu.bf16 ? "avx2+bfmmla" : "avx2";
  std::string name = describe(machine.cpu);
  std::replace(name.begin(), name.end(), ' ', '+');
  return name;
}

}  // namespace quire
