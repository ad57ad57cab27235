// Logits of a text from the GPU: against the reference's, and the same as an engine samples from.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "engine/engine.h"
#include "eval/scorer.h"
#include "support/tiny_models.h"

namespace quire::cuda_test {
namespace {

using test::TinyModel;
using test::TinyModelFile;

constexpr int64_t kWindow = 150;  // two chunks of 64 and a piece, states are written several times for generated tokens

std::shared_ptr<const LoadedModel> load(const TinyModel& m) {
  const TinyModelFile file(m);  // stays mapped when the name is gone
  auto model = load_model(file.path());
  QUIRE_CHECK(model.ok(), "{}", model.error().message);
  return std::move(model).value();
}

// Shapes that the GPU's kernels take: experts with attention, and a hybrid.
std::vector<TinyModel> models() {
  std::vector<TinyModel> wanted;
  for (TinyModel m : test::tiny_models()) {
    if (m.name == "tiny-qwen35moe") m.head_dim = 64, m.state = 128;
    if (m.name == "tiny-qwen3moe" || m.name == "tiny-qwen35moe") wanted.push_back(m);
  }
  return wanted;
}

std::vector<TokenId> random_tokens(int64_t vocab) {
  std::mt19937 random(7);
  std::uniform_int_distribution<TokenId> any(0, static_cast<TokenId>(vocab - 1));
  std::vector<TokenId> tokens(static_cast<size_t>(kWindow));
  for (TokenId& t : tokens) t = any(random);
  return tokens;
}

std::vector<float> score(const std::shared_ptr<const LoadedModel>& model, Device device, bool generated,
                         std::span<const TokenId> tokens) {
  auto scorer = Scorer::create(model, {.device = device, .window = kWindow, .generated = generated});
  QUIRE_CHECK(scorer.ok(), "{}", scorer.error().message);
  std::vector<float> all;
  const Status run = (*scorer)->run(
      tokens, [&](int64_t, std::span<const float> logits) { all.insert(all.end(), logits.begin(), logits.end()); });
  QUIRE_CHECK(run.ok(), "{}", run.error().message);
  return all;
}

double divergence(std::span<const float> reference, std::span<const float> logits) {
  double sum = 0;
  for (size_t i = 0; i < reference.size(); ++i) {
    const double p = log_probability(reference, static_cast<TokenId>(i));
    sum += std::exp(p) * (p - log_probability(logits, static_cast<TokenId>(i)));
  }
  return sum;
}

TEST(CudaLogits, AreThoseOfTheReference) {
  for (const TinyModel& m : models()) {
    const auto model = load(m);
    const auto vocab = static_cast<size_t>(model->model->config().vocab);
    const std::vector<TokenId> tokens = random_tokens(model->model->config().vocab);
    const std::vector<float> want = score(model, Device::kReference, false, tokens);
    for (const bool generated : {false, true}) {
      const std::vector<float> got = score(model, Device::kCuda, generated, tokens);
      ASSERT_EQ(got.size(), want.size());
      std::vector<double> kl;
      for (size_t at = 0; at < want.size(); at += vocab)
        kl.push_back(divergence(std::span(want).subspan(at, vocab), std::span(got).subspan(at, vocab)));
      std::sort(kl.begin(), kl.end());
      // Here and there a token goes to another expert: the median says whether the arithmetic is right.
      EXPECT_LT(kl[kl.size() / 2], 2e-3) << m.name << (generated ? ", generated" : "");
      EXPECT_LT(kl[kl.size() * 9 / 10], 0.1) << m.name << (generated ? ", generated" : "");
    }
  }
}

TEST(CudaLogits, AreThoseThatAnEngineSamplesFrom) {
  for (const TinyModel& m : models()) {
    const auto model = load(m);
    const auto vocab = static_cast<size_t>(model->model->config().vocab);
    const std::vector<TokenId> tokens = random_tokens(model->model->config().vocab);
    const std::vector<float> all = score(model, Device::kCuda, false, tokens);
    const auto last = std::span(all).last(vocab);
    EngineOptions options{.device = Device::kCuda, .max_sequences = 2};
    options.context = kWindow + 1;
    auto engine = Engine::create(model, options);
    ASSERT_TRUE(engine.ok()) << engine.error().message;
    Request r;
    r.prompt = tokens;
    r.max_tokens = 1;
    r.sampling.logprobs = 0;
    std::vector<TokenEvent::Token> sampled;
    const auto id = (*engine)->submit(std::move(r), [&](const TokenEvent& e) {
      if (const auto* const t = e.as<TokenEvent::Token>()) sampled.push_back(*t);
    });
    ASSERT_TRUE(id.ok()) << id.error().message;
    while ((*engine)->busy()) (*engine)->step();
    ASSERT_FALSE(sampled.empty());
    EXPECT_EQ(sampled[0].id, std::max_element(last.begin(), last.end()) - last.begin()) << m.name;
    EXPECT_NEAR(sampled[0].logprob, log_probability(last, sampled[0].id), 1e-4) << m.name;
  }
}

// An engine looks up the tokens of a prompt on the device, a slice of logits at a time.
TEST(CudaLogits, AreThoseThatAnEngineLooksUpAPromptIn) {
  for (const TinyModel& m : models()) {
    const auto model = load(m);
    const auto vocab = static_cast<size_t>(model->model->config().vocab);
    const std::vector<TokenId> tokens = random_tokens(model->model->config().vocab);
    const std::vector<float> logits = score(model, Device::kCuda, false, tokens);
    auto engine = Engine::create(model, {.device = Device::kCuda,
                                         .context = kWindow,
                                         .max_sequences = 2,
                                         .max_batch_tokens = 128,
                                         .gpu_memory_utilization = 0.5});
    ASSERT_TRUE(engine.ok()) << engine.error().message;
    Request r;
    r.prompt = tokens;
    r.max_tokens = 0;
    r.prompt_logprobs = 2;
    PromptLogprobs got;
    int events = 0;
    const auto id = (*engine)->submit(r, [&](const TokenEvent& e) {
      ++events;
      if (const auto* const b = e.as<TokenEvent::Begun>(); b != nullptr && b->prompt) got = *b->prompt;
    });
    ASSERT_TRUE(id.ok()) << id.error().message;
    while ((*engine)->busy()) (*engine)->step();
    EXPECT_EQ(events, 2) << "it has begun and ended";
    ASSERT_EQ(std::ssize(got.logprobs), kWindow - 1);
    for (size_t i = 0; i + 1 < tokens.size(); ++i) {
      const std::span<const float> row = std::span(logits).subspan(i * vocab, vocab);
      EXPECT_NEAR(got.logprobs[i], log_probability(row, tokens[i + 1]), 2e-5) << m.name << ", position " << i;
      const float own = row[static_cast<size_t>(tokens[i + 1])];
      EXPECT_EQ(got.ranks[i], 1 + std::count_if(row.begin(), row.end(), [&](float x) { return x > own; }));
      const auto best = std::max_element(row.begin(), row.end()) - row.begin();
      EXPECT_EQ(got.top[2 * i].token, best) << m.name << ", position " << i;
    }
  }
}

}  // namespace
}  // namespace quire::cuda_test
