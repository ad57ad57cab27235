#include "lab/snapshot/operators.h"

#include <algorithm>

namespace quire::cli::snapshot {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

void OperatorClock::begin(const Launch& launch) {
  if (depth_++ > 0) return;
  open_ = static_cast<size_t>(
      std::find_if(buckets_.begin(), buckets_.end(), [&](const Bucket& b) { return b.op == launch.op; }) -
      buckets_.begin());
  if (open_ == buckets_.size()) buckets_.push_back({.op = std::string(launch.op)});
  Bucket& b = buckets_[open_];
  ++b.calls;
  b.bytes += launch.traffic.bytes;
  b.flops += launch.traffic.flops;
  start_ = Clock::now();
}

void OperatorClock::end() {
  if (--depth_ > 0) return;
  buckets_[open_].seconds += std::chrono::duration<double>(Clock::now() - start_).count();
}

std::vector<Bucket> OperatorClock::take(const std::string& phase) {
  for (Bucket& b : buckets_) b.phase = phase;
  return std::exchange(buckets_, {});
}

Result<std::unique_ptr<OperatorProfile>> OperatorProfile::create(const std::shared_ptr<const LoadedModel>& model,
                                                                 const ScorerOptions& options, Shape shape) {
  const ModelConfig& c = model->model->config();
  shape.prompt = std::min(shape.prompt, c.context_length);
  shape.generated = std::min(shape.generated, c.context_length);
  std::vector<TokenId> tokens;
  for (int64_t i = 0; i < std::max(shape.prompt, shape.generated); ++i)
    tokens.push_back(static_cast<TokenId>((i * i * 7919 + 13) % c.vocab));
  std::unique_ptr<OperatorProfile> p(new OperatorProfile(shape, std::move(tokens)));
  ScorerOptions o = options;
  o.launches = &p->clock_;
  o.window = shape.prompt;
  QUIRE_TRY(p->prompt_, Scorer::create(model, o));
  o.window = shape.generated;
  o.generated = true;
  QUIRE_TRY(p->generated_, Scorer::create(model, o));
  return p;
}

Result<std::vector<Bucket>> OperatorProfile::run() {
  const std::span<const TokenId> tokens = tokens_;
  QUIRE_CHECKED(prompt_->run(tokens.first(static_cast<size_t>(shape_.prompt)), [](int64_t, std::span<const float>) {}));
  std::vector<Bucket> all = clock_.take("prompt");
  generated_->restart();
  for (size_t i = 0; i < static_cast<size_t>(shape_.generated); ++i) {
    QUIRE_TRY([[maybe_unused]] const std::span<const float> logits, generated_->extend(tokens.subspan(i, 1)));
  }
  std::vector<Bucket> decode = clock_.take("decode");
  all.insert(all.end(), decode.begin(), decode.end());
  return all;
}

}  // namespace quire::cli::snapshot
