// The promise of the program on a GPU: what a request gets depends on the request alone. Prompts generated alone, one
// after the other, and again in engines of every kind, mixed with each other.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <random>

#include "engine/engine.h"
#include "support/tiny_models.h"

namespace quire::cuda_test {
namespace {

using Model = std::shared_ptr<const LoadedModel>;

struct Heard {
  std::vector<TokenId> tokens;
  std::string text;
  PromptLogprobs prompt;
  int ends = 0;
};

// Prompts from one token to several chunks, greedy and drawn, some that begin like the one before.
std::vector<Request> make_requests(int64_t vocab) {
  std::mt19937_64 random(23);
  std::uniform_int_distribution<TokenId> any(0, static_cast<TokenId>(vocab - 1));
  std::vector<Request> all;
  for (const int64_t length : {1, 2, 15, 16, 17, 63, 64, 65, 100, 128, 129, 200, 257, 400, 511, 700}) {
    Request r;
    if (all.size() % 3 == 2) r.prompt = all.back().prompt;
    while (std::ssize(r.prompt) < length) r.prompt.edit().push_back(any(random));
    r.max_tokens = 20 + length % 29;  // recurrent states are written several times
    r.ignore_eos = true;
    if (all.size() % 3 != 2) r.prompt_logprobs = static_cast<int>(all.size() % 5);
    if (all.size() % 2 == 1) {
      r.sampling.temperature = 0.9f;
      r.sampling.top_k = 50;
      r.sampling.top_p = 0.95f;
      if (all.size() % 4 == 1) r.sampling.repetition_penalty = 1.05f;
      r.sampling.seed = static_cast<uint64_t>(length);
    }
    all.push_back(std::move(r));
  }
  return all;
}

// `copies` of each request arrive `step` steps after each other.
std::vector<Heard> run(const Model& model, EngineOptions options, std::span<const Request> requests, int copies,
                       int step) {
  options.device = Device::kCuda;
  options.context = 800;
  options.gpu_memory_utilization = 0.5;
  auto created = Engine::create(model, options);
  QUIRE_CHECK(created.ok(), "{}", created.error().message);
  Engine& engine = **created;
  const size_t count = requests.size() * static_cast<size_t>(copies);
  std::vector<Heard> heard(count);
  size_t arrived = 0;
  for (int64_t now = 0; arrived < count || engine.busy(); ++now) {
    for (; arrived < count && static_cast<int64_t>(arrived) * step <= now; ++arrived) {
      const auto id = engine.submit(requests[arrived % requests.size()], [&h = heard[arrived]](const TokenEvent& e) {
        if (e.token() >= 0) h.tokens.push_back(e.token());
        h.text += e.text();
        if (const auto* const b = e.as<TokenEvent::Begun>(); b != nullptr && b->prompt) h.prompt = *b->prompt;
        h.ends += e.finish() == FinishReason::kLength;
      });
      QUIRE_CHECK(id.ok(), "{}", id.error().message);
    }
    engine.step();
  }
  const Status books = engine.check();
  EXPECT_TRUE(books.ok()) << books.error().message;
  return heard;
}

// Bit by bit: numbers that are not numbers would differ from themselves.
void expect_same(const PromptLogprobs& got, const PromptLogprobs& want, const std::string& what) {
  EXPECT_EQ(got.logprobs, want.logprobs) << what;
  EXPECT_EQ(got.ranks, want.ranks) << what;
  ASSERT_EQ(got.top.size(), want.top.size()) << what;
  for (size_t i = 0; i < want.top.size(); ++i) {
    EXPECT_EQ(got.top[i].token, want.top[i].token) << what << ", alternative " << i;
    EXPECT_EQ(got.top[i].logprob, want.top[i].logprob) << what << ", alternative " << i;
  }
}

// Drafts of what was answered alone, of which some are wrong.
DraftHook partly_right(std::span<const Request> requests, std::span<const Heard> alone) {
  std::map<std::vector<TokenId>, std::vector<TokenId>> answers;
  for (size_t i = 0; i < requests.size(); ++i) answers[requests[i].prompt.vector()] = alone[i].tokens;
  return [answers, random = std::mt19937_64(5)](std::span<const TokenId> prompt, std::span<const TokenId> output,
                                                int32_t most, std::vector<TokenId>& drafts) mutable {
    const std::vector<TokenId>& all = answers.at({prompt.begin(), prompt.end()});
    const uint64_t wrong = random() % 10, count = random() % static_cast<uint64_t>(most + 1);
    for (size_t i = 0; i < count && output.size() + i < all.size(); ++i)
      drafts.push_back(all[output.size() + i] ^ (i == wrong ? 1 : 0));
  };
}

void expect_texts_of_their_own(const Model& model) {
  const std::vector<Request> requests = make_requests(model->model->config().vocab);
  std::vector<Heard> alone;
  for (const Request& r : requests) {
    alone.push_back(run(model, {.max_sequences = 1, .max_batch_tokens = 1024, .depth = 1}, {&r, 1}, 1, 0).front());
    EXPECT_EQ(std::ssize(alone.back().tokens), r.max_tokens);
    EXPECT_EQ(std::ssize(alone.back().prompt.logprobs), r.prompt_logprobs < 0 ? 0 : std::ssize(r.prompt) - 1);
  }
  const DraftHook hook = partly_right(requests, alone);
  struct Setting {
    const char* name;
    EngineOptions options;
    int copies, step;
  };
  const Setting settings[] = {
      {"8, chunks of 64", {.max_sequences = 8, .max_batch_tokens = 64}, 1, 3},
      {"8, no graphs, one step at a time",
       {.max_sequences = 8, .max_batch_tokens = 512, .graphs = false, .depth = 1},
       1,
       0},
      {"32, shuffled blocks", {.max_sequences = 32, .max_batch_tokens = 512, .shuffle_blocks = 5}, 3, 1},
      {"128 at once", {.max_sequences = 128, .max_batch_tokens = 2048}, 8, 0},
      {"128, one after the other", {.max_sequences = 128, .max_batch_tokens = 2048}, 8, 1},
      {"few blocks, swapped",
       {.max_sequences = 16, .max_batch_tokens = 256, .kv_tokens = 2400, .swap_bytes = 1 << 28},
       2,
       1},
      {"cached prefixes",
       {.max_sequences = 8, .max_batch_tokens = 256, .prefix_cache = true, .state_checkpoints = 16},
       3,
       9},
      {"drafts, some wrong",
       {.max_sequences = 8, .max_batch_tokens = 256, .speculative = {.adaptive = false, .hook = hook}},
       2,
       1},
      {"drafts without graphs",
       {.max_sequences = 32,
        .max_batch_tokens = 512,
        .graphs = false,
        .speculative = {.adaptive = false, .hook = hook}},
       2,
       1},
      {"the block's drafts, alone",
       {.max_sequences = 1,
        .max_batch_tokens = 256,
        .speculative = {.mode = Speculative::kMtp, .tokens = 7, .adaptive = false}},
       1,
       0},
      {"the block's drafts",
       {.max_sequences = 16,
        .max_batch_tokens = 256,
        .prefix_cache = true,
        .state_checkpoints = 16,
        .speculative = {.mode = Speculative::kMtp, .tokens = 3, .adaptive = false}},
       3,
       1},
      {"in turns, with few parts of keys",
       {.context = 800,
        .max_sequences = 32,
        .max_batch_tokens = 512,
        .decode_parts = 8,
        .speculative = {.adaptive = false, .hook = hook}},
       3,
       1},
      {"drafts where they pay", {.max_sequences = 16, .speculative = {.mode = Speculative::kAuto}}, 2, 1},
  };
  for (const Setting& s : settings) {
    const std::vector<Heard> crowd = run(model, s.options, requests, s.copies, s.step);
    for (size_t i = 0; i < crowd.size(); ++i) {
      const Heard& want = alone[i % alone.size()];
      EXPECT_EQ(crowd[i].ends, 1) << s.name << ", request " << i;
      EXPECT_EQ(crowd[i].tokens, want.tokens) << s.name << ", request " << i;
      EXPECT_EQ(crowd[i].text, want.text) << s.name << ", request " << i;
      expect_same(crowd[i].prompt, want.prompt, fmt::format("{}, request {}", s.name, i));
    }
  }
}

// Every architecture, with shapes that the GPU's kernels take.
class EngineOnGpu : public testing::TestWithParam<test::TinyModel> {};
INSTANTIATE_TEST_SUITE_P(Models, EngineOnGpu, testing::ValuesIn(test::tiny_models()),
                         [](const auto& of) { return of.param.name.substr(std::string("tiny-").size()); });
TEST_P(EngineOnGpu, ARequestsTextIsItsOwn) {
  test::TinyModel m = GetParam();
  m.head_dim = 64;
  // Layers that attend to all have wider heads in Gemma 4: of one model as in the real ones, where they are 512.
  if (m.gemma4()) m.global_head_dim = 2 * (m.head_dim = m.experts > 0 ? 64 : 256);
  if (m.per_layer > 0) m.per_layer = 64;
  if (m.hybrid()) m.state = 128;
  const test::TinyModelFile file(m);
  auto model = load_model(file.path());
  ASSERT_TRUE(model.ok()) << model.error().message;
  expect_texts_of_their_own(*model);
}

// Run from the repository's root.
class DemoOnGpu : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models, DemoOnGpu, testing::Values("dense", "moe"));
TEST_P(DemoOnGpu, ARequestsTextIsItsOwn) {
  const std::string file = "models/demo-" + std::string(GetParam()) + "-nvfp4.gguf";
  if (!std::filesystem::exists(file)) GTEST_SKIP() << "there is no " << file << " here";
  auto model = load_model(file);
  ASSERT_TRUE(model.ok()) << model.error().message;
  expect_texts_of_their_own(*model);
}

}  // namespace
}  // namespace quire::cuda_test
