// The multi-token-prediction block against drafts that another program computed (docs/testing.md).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>

#include "ops/sampling/sampling.h"
#include "support/golden.h"

namespace quire::test {
namespace {

using Json = nlohmann::json;

// The rows of one prompt from its beginning, as a step.
class PromptStep {
 public:
  explicit PromptStep(int64_t tokens, int64_t width)
      : layout_({.rows = static_cast<int32_t>(tokens),
                 .segments = 1,
                 .table_width = static_cast<int32_t>((tokens + kBlockTokens - 1) / kBlockTokens),
                 .logit_rows = static_cast<int32_t>(tokens),
                 .width = static_cast<int32_t>(width)}),
        memory_(static_cast<size_t>(layout_.bytes())) {}

  StepBatch batch(std::span<const TokenId> tokens, bool logits) {
    const StepArrays a = layout_.arrays(memory_.data());
    const auto rows = static_cast<int32_t>(tokens.size());
    std::ranges::copy(tokens, a.tokens);
    std::fill_n(a.sources, rows, -1);
    std::iota(a.tables, a.tables + layout_.capacity().table_width, 0);
    std::iota(a.logit_rows, a.logit_rows + rows, 0);
    a.segments[0] = {.count = rows, .state_slot = 0};
    return layout_.batch(memory_.data(),
                         {.rows = rows,
                          .segments = 1,
                          .logit_rows = logits ? rows : 0,
                          .table_width = layout_.capacity().table_width,
                          .longest = rows},
                         nullptr);
  }

 private:
  StepLayout layout_;
  std::vector<std::byte> memory_;
};

// Logits of a text's rows, [., vocab]: row i of the model's tells of token i + 1, row i of the block's of token i + 2.
struct TextLogits {
  std::vector<float> model, block;
};

TextLogits logits_of(const LoadedModel& model, const MtpBlock& block, Device device, std::span<const TokenId> ids) {
  const ModelConfig& c = model.model->config();
  const auto tokens = static_cast<int64_t>(ids.size()), drafts = tokens - 1;
  ThreadPool pool(2);
  Workspace workspace;
  const OpContext ctx{.pool = pool, .workspace = workspace, .machine = {device}};
  const CacheShape shape = cache_shape(c, activation_type(device), KvCacheType::kAuto, {.drafts = 1, .mtp = true});
  const CacheStorage caches =
      CacheStorage::create(shape, shape.counts(static_cast<int32_t>((tokens + kBlockTokens - 1) / kBlockTokens), 1))
          .value();
  PromptStep step(tokens, c.d_model);
  std::vector<float> states(static_cast<size_t>(tokens * c.d_model));
  TextLogits all;
  all.model.resize(static_cast<size_t>(tokens * c.vocab));
  all.block.resize(static_cast<size_t>(drafts * c.vocab));
  model.model->decoder().forward(ctx, step.batch(ids, true), caches, {},
                                 {.logits = make_tensor(all.model.data(), {tokens, c.vocab}),
                                  .states = make_tensor(states.data(), {tokens, c.d_model})});
  StepBatch after = step.batch(ids.subspan(1), true);
  after.hidden = make_tensor(states.data(), {drafts, c.d_model});
  const Decoder mtp = mtp_decoder(model.model->decoder(), block.weights, c.vocab);
  mtp.forward(ctx, after, caches, {}, {.logits = make_tensor(all.block.data(), {drafts, c.vocab})});
  return all;
}

// What the block would draft after each position of the prompt but the last one.
std::vector<TokenId> drafts_of(const LoadedModel& model, const MtpBlock& block, Device device,
                               std::span<const TokenId> ids) {
  const int64_t vocab = model.model->config().vocab;
  const std::vector<float> logits = logits_of(model, block, device, ids).block;
  std::vector<TokenId> all;
  for (auto row = logits.begin(); row != logits.end(); row += vocab)
    all.push_back(static_cast<TokenId>(std::max_element(row, row + vocab) - row));
  return all;
}

class GoldenDrafts : public testing::TestWithParam<std::tuple<const char*, Device>> {};

TEST_P(GoldenDrafts, AreTheBlocks) {
  const auto& [name, device] = GetParam();
  const std::string path = QUIRE_SOURCE_DIR "/../shared/models/gguf/" + std::string(name) + "-bf16.gguf";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not here: only bf16 has golden outputs";
  const ModelPtr model = load_or_die(path);
  const auto block = model->mtp();
  ASSERT_TRUE(block.ok()) << block.error().message;
  const Json golden = Json::parse(read_whole_file(golden_folder() + name + "-mtp.json"));
  // Logits of the float32 reference are within this of the other program's; bf16 activations move them further.
  const double clear = device == Device::kReference ? 0.01 : 0.5;
  size_t compared = 0, all = 0;
  for (const Json& p : golden.at("prompts")) {
    SCOPED_TRACE(p.at("name").get<std::string>());
    const auto ids = p.at("ids").get<std::vector<TokenId>>();
    if (device == Device::kReference && ids.size() > 100) continue;
    const std::vector<TokenId> drafts = drafts_of(*model, **block, device, ids);
    for (size_t i = 0; i < p.at("positions").size(); ++i) {
      ++all;
      if (p.at("gap")[i].get<double>() < clear) continue;
      ++compared;
      EXPECT_EQ(drafts.at(p.at("positions")[i].get<size_t>()), p.at("draft")[i].get<TokenId>()) << "position " << i;
    }
  }
  EXPECT_GT(compared, all / 2);
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenDrafts,
                         testing::Combine(testing::Values("demo-dense", "demo-moe"),
                                          testing::Values(Device::kReference, Device::kCpu)),
                         [](const auto& p) {
                           return std::string(std::get<0>(p.param)).substr(5) +
                                  (std::get<1>(p.param) == Device::kCpu ? "Cpu" : "Reference");
                         });

// ---- How often drafts are right

std::vector<double> distribution(const float* logits, int64_t vocab, double temperature) {
  const double best = *std::max_element(logits, logits + vocab);
  std::vector<double> p(static_cast<size_t>(vocab));
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) sum += p[i] = std::exp((logits[i] - best) / temperature);
  for (double& x : p) x /= sum;
  return p;
}

// The share that any way of drawing both tokens could make equal at most: 1 - the total variation distance.
double common_mass(const float* a, const float* b, int64_t vocab, double temperature) {
  const std::vector<double> p = distribution(a, vocab, temperature), q = distribution(b, vocab, temperature);
  double both = 0;
  for (size_t i = 0; i < p.size(); ++i) both += std::min(p[i], q[i]);
  return both;
}

std::vector<TokenId> drawn(std::vector<float>& logits, int64_t first, int64_t rows, int64_t vocab, double temperature,
                           uint64_t seed) {
  ThreadPool pool(2);
  Workspace workspace;
  const OpContext ctx{.pool = pool, .workspace = workspace, .machine = {Device::kCpu}};
  std::vector<SampleRow> how(static_cast<size_t>(rows));
  std::vector<int32_t> tokens(how.size()), count(how.size());
  std::vector<float> logprobs(how.size());
  for (size_t i = 0; i < how.size(); ++i)
    how[i] = {.seed = seed, .position = static_cast<int64_t>(i), .temperature = static_cast<float>(temperature)};
  sample(ctx, {.logits = make_tensor(logits.data() + first * vocab, {rows, vocab}),
               .rows = how.data(),
               .out = {.tokens = make_tensor(tokens.data(), {rows}),
                       .logprobs = make_tensor(logprobs.data(), {rows}),
                       .top_ids = make_tensor(tokens.data(), {rows, 0}),
                       .top_logprobs = make_tensor(logprobs.data(), {rows, 0}),
                       .top_count = make_tensor(count.data(), {rows})}});
  return tokens;
}

class Acceptance : public testing::TestWithParam<const char*> {};

// Model and block draw with the same noise: on text that neither has seen they draw the same token nearly as often as
// their distributions allow.
TEST_P(Acceptance, IsNearWhatTheDistributionsAllow) {
  const ModelPtr model = load_or_die(fmt::format("{}/models/{}-nvfp4.gguf", QUIRE_SOURCE_DIR, GetParam()));
  const auto block = model->mtp();
  ASSERT_TRUE(block.ok()) << block.error().message;
  const int64_t vocab = model->model->config().vocab;
  std::vector<TokenId> ids =
      model->tokenizer->encode(read_whole_file(golden_folder() + "ppl.txt").substr(0, 3000), {.add_special = true});
  ids.resize(std::min<size_t>(ids.size(), 512));
  TextLogits logits = logits_of(*model, **block, Device::kCpu, ids);
  const auto rows = std::ssize(ids) - 1;
  ASSERT_GT(rows, 300);
  for (const double temperature : {0.0, 0.7, 1.0}) {
    double equal = 0, possible = 0;
    const int seeds = temperature == 0 ? 1 : 8;
    for (int seed = 0; seed < seeds; ++seed) {
      const auto a = drawn(logits.model, 1, rows, vocab, temperature, static_cast<uint64_t>(seed));
      const auto b = drawn(logits.block, 0, rows, vocab, temperature, static_cast<uint64_t>(seed));
      for (size_t i = 0; i < a.size(); ++i) equal += a[i] == b[i];
    }
    for (int64_t i = 0; i < rows; ++i)
      possible += common_mass(logits.model.data() + (i + 1) * vocab, logits.block.data() + i * vocab, vocab,
                              std::max(temperature, 1e-3));
    const double share = equal / seeds / possible;
    RecordProperty(fmt::format("temperature_{}", temperature), fmt::format("{:.3f}", share));
    fmt::print("temperature {}: drafts equal {:.3f}, at most {:.3f}: {:.3f} of it\n", temperature,
               equal / seeds / static_cast<double>(rows), possible / static_cast<double>(rows), share);
    EXPECT_GT(share, 0.85);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Acceptance, testing::Values("demo-dense", "demo-moe"),
                         [](const auto& p) { return std::string(p.param).substr(5); });

}  // namespace
}  // namespace quire::test
