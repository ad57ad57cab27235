#include "eval/scorer.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/activations.h"
#include "ops/registry.h"

namespace quire {
double log_probability(std::span<const float> logits, TokenId token) {
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (float l : logits) sum += std::exp(static_cast<double>(l) - top);
  return static_cast<double>(logits[static_cast<size_t>(token)]) - top - std::log(sum);
}

Result<std::unique_ptr<Scorer>> Scorer::create(std::shared_ptr<const LoadedModel> model, ScorerOptions options) {
  QUIRE_CHECKED(check_forced(options.kernels, {.device = options.device}));
  const ModelConfig& c = model->model->config();
  if (options.window < 2 || options.window > c.context_length)
    return request_error("a window of {} tokens: must be between 2 and the model's context of {}", options.window,
                         c.context_length);
  if (options.device == Device::kCuda && options.observer != nullptr)
    return request_error("what weights are multiplied by is observed on the CPU only: use --device cpu");
  if (options.threads == 0) options.threads = available_cpus();
  if (options.threads < 1 || options.threads > 1024)
    return request_error("{} threads: must be between 1 and 1024", options.threads);
  QUIRE_TRY(options.activations, choose_activations(model->file, options.activations, options.device, options.gpu));
  const auto blocks = static_cast<int32_t>((options.window + kBlockTokens - 1) / kBlockTokens);
  const CacheShape caches = model->model->cache_shape(options.device, options.kv_cache);
  QUIRE_TRY(CacheStorage storage, CacheStorage::create(caches, caches.counts(blocks, 1)));
  std::unique_ptr<Scorer> scorer(new Scorer(std::move(model), std::move(options), std::move(storage)));
  if (scorer->options_.device == Device::kCuda) {
    QUIRE_TRY(scorer->gpu_,
              make_cuda_logits(scorer->model_, scorer->layout_, blocks, scorer->options_.kv_cache, scorer->options_.gpu,
                               {.prompts = token_rounding(scorer->options_.activations)},
                               {&scorer->options_.kernels, &scorer->forced_}));
  }
  return scorer;
}

Scorer::Scorer(std::shared_ptr<const LoadedModel> model, ScorerOptions options, CacheStorage storage)
    : model_(std::move(model)),
      options_(std::move(options)),
      forced_(options_.kernels),
      pool_(options_.threads),
      storage_(std::move(storage)),
      chunk_(std::min(logits_slice(model_->model->config().vocab), options_.window)),
      layout_({.rows = static_cast<int32_t>(chunk_),
               .segments = 1,
               .table_width = static_cast<int32_t>((options_.window + kBlockTokens - 1) / kBlockTokens),
               .logit_rows = static_cast<int32_t>(chunk_)}),
      step_memory_(static_cast<size_t>(layout_.bytes())) {
  // What never changes: every row wants its logits, and holds the token that is written there.
  const StepArrays a = layout_.arrays(step_memory_.data());
  std::iota(a.tables, a.tables + layout_.capacity().table_width, 0);
  std::iota(a.logit_rows, a.logit_rows + chunk_, 0);
  std::fill_n(a.sources, chunk_, -1);
}

StepShape Scorer::step(int64_t count) {
  const auto rows = static_cast<int32_t>(count), position = static_cast<int32_t>(position_);
  Segment& s = *layout_.arrays(step_memory_.data()).segments;
  s = {.count = rows, .position = position, .state_slot = 0, .anchor = static_cast<int32_t>(anchor_)};
  StepShape shape{.rows = rows, .segments = 1, .logit_rows = rows};
  shape.table_width = layout_.capacity().table_width;
  shape.longest = position + rows;
  if (options_.generated) {
    shape.decode_rows = shape.decode_logit_rows = rows;
    shape.decodes = 1;
    shape.decode_keys = shape.longest;
  }
  return shape;
}

Status Scorer::forward(std::span<const TokenId> tokens, float* logits) {
  const auto count = static_cast<int64_t>(tokens.size());
  std::copy(tokens.begin(), tokens.end(), layout_.arrays(step_memory_.data()).tokens);
  const StepShape shape = step(count);
  if (gpu_ != nullptr) {
    QUIRE_CHECKED(gpu_->forward(step_memory_.data(), shape, logits));
  } else {
    const OpContext ctx{.pool = pool_,
                        .workspace = workspace_,
                        .machine = {options_.device},
                        .choice = &options_.kernels,
                        .forced = &forced_,
                        .observer = options_.observer,
                        .launches = options_.launches};
    model_->model->decoder().forward(ctx, layout_.batch(step_memory_.data(), shape, nullptr), storage_,
                                     {.latency = options_.generated, .prompts = token_rounding(options_.activations)},
                                     {.logits = make_tensor(logits, {count, model_->model->config().vocab})});
  }
  const Segment& s = *layout_.arrays(step_memory_.data()).segments;
  anchor_ = options_.generated ? anchor_after_decode(s) : anchor_after_prompt(s);
  position_ += count;
  return {};
}

Result<std::span<const float>> Scorer::extend(std::span<const TokenId> tokens) {
  const auto count = static_cast<int64_t>(tokens.size());
  const int64_t vocab = model_->model->config().vocab;
  QUIRE_CHECK(count > 0 && count <= chunk_ && (options_.generated || position_ % chunk_ == 0),
              "{} tokens after {}, chunks of {}", count, position_, chunk_);
  if (position_ + count > options_.window)
    return request_error("{} tokens do not fit a window of {}", position_ + count, options_.window);
  for (TokenId t : tokens)
    if (t < 0 || t >= vocab) return request_error("token {}: the vocabulary has {} tokens", t, vocab);
  logits_.resize(static_cast<size_t>(count * vocab));
  // A GPU's kernels of generated tokens take few rows of a sequence in a step: the tokens that were generated, one by
  // one.
  const int64_t most = gpu_ != nullptr && options_.generated ? 1 : count;
  for (int64_t begin = 0; begin < count; begin += most)
    QUIRE_CHECKED(
        forward(tokens.subspan(static_cast<size_t>(begin), static_cast<size_t>(most)), logits_.data() + begin * vocab));
  return std::span<const float>(logits_);
}

Status Scorer::run(std::span<const TokenId> tokens, const Each& each) {
  const auto n = static_cast<int64_t>(tokens.size());
  const auto vocab = static_cast<size_t>(model_->model->config().vocab);
  if (n > options_.window) return request_error("{} tokens do not fit a window of {}", n, options_.window);
  restart();
  for (int64_t begin = 0; begin < n; begin += chunk_) {
    const int64_t count = std::min(chunk_, n - begin);
    QUIRE_TRY(const std::span<const float> logits,
              extend(tokens.subspan(static_cast<size_t>(begin), static_cast<size_t>(count))));
    for (int64_t i = 0; i < count; ++i) each(begin + i, logits.subspan(static_cast<size_t>(i) * vocab, vocab));
  }
  return {};
}

Result<double> Scorer::negative_log_likelihood(std::span<const TokenId> tokens) {
  double sum = 0.0;
  QUIRE_CHECKED(run(tokens, [&](int64_t position, std::span<const float> logits) {
    if (position + 1 < static_cast<int64_t>(tokens.size()))
      sum -= log_probability(logits, tokens[static_cast<size_t>(position) + 1]);
  }));
  return sum;
}

}  // namespace quire
