// The multi-token-prediction block against drafts that another program computed (docs/testing.md).
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>

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
    const StepLayout::Arrays a = layout_.arrays(memory_.data());
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

// What the block would draft after each position of the prompt but the last one.
std::vector<TokenId> drafts_of(const LoadedModel& model, const MtpBlock& block, Device device,
                               std::span<const TokenId> ids) {
  const ModelConfig& c = model.model->config();
  const auto tokens = static_cast<int64_t>(ids.size()), drafts = tokens - 1;
  ThreadPool pool(2);
  Workspace workspace;
  const OpContext ctx{.pool = pool, .workspace = workspace, .machine = {device}};
  const CacheShape shape = cache_shape(c, activation_type(device), KvCacheType::kAuto, {.drafts = 1, .mtp = true});
  const CacheStorage caches =
      CacheStorage::create(shape, static_cast<int32_t>((tokens + kBlockTokens - 1) / kBlockTokens), 1).value();
  PromptStep step(tokens, c.d_model);
  std::vector<float> states(static_cast<size_t>(tokens * c.d_model)), logits(static_cast<size_t>(drafts * c.vocab));
  model.model->decoder().forward(ctx, step.batch(ids, false), caches, {},
                                 {.states = make_tensor(states.data(), {tokens, c.d_model})});
  StepBatch after = step.batch(ids.subspan(1), true);
  after.hidden = make_tensor(states.data(), {drafts, c.d_model});
  const Decoder mtp = mtp_decoder(model.model->decoder(), block.weights, c.vocab);
  mtp.forward(ctx, after, caches, {}, {.logits = make_tensor(logits.data(), {drafts, c.vocab})});
  std::vector<TokenId> all;
  for (int64_t i = 0; i < drafts; ++i) {
    const auto row = logits.begin() + i * c.vocab;
    all.push_back(static_cast<TokenId>(std::max_element(row, row + c.vocab) - row));
  }
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

}  // namespace
}  // namespace quire::test
