// Prefix caching, its memory on the host and swapping are exact: whatever is found, saved, cancelled, swapped out,
// spilled and brought back, and however few blocks there are, a text is the one that the request gets alone.
#include <gtest/gtest.h>

#include <deque>
#include <random>

#include "engine/engine_rig.h"
#include "support/cache_bytes.h"
#include "support/protected_backend.h"

namespace quire::test {
namespace {

class Random {
 public:
  explicit Random(uint64_t seed) : rng_(seed) {}
  int64_t number(int64_t lo, int64_t hi) { return std::uniform_int_distribution<int64_t>(lo, hi)(rng_); }
  bool once_in(int64_t n) { return number(1, n) == 1; }

 private:
  std::mt19937_64 rng_;
};

std::vector<TokenId> random_tokens(Random& r, int64_t count) {
  std::vector<TokenId> t(static_cast<size_t>(count));
  for (TokenId& x : t) x = static_cast<TokenId>(r.number(30, 300));
  return t;
}

// Prompts that share beginnings with each other and go their own ways anywhere.
std::vector<Arrival> prefix_script(uint64_t seed, int count, int64_t longest, int64_t output,
                                   int64_t families_count = 4) {
  Random r(seed);
  std::vector<std::vector<TokenId>> families;
  for (int64_t i = 0; i < families_count; ++i) families.push_back(random_tokens(r, longest));
  std::vector<Arrival> s;
  int64_t step = 0;
  for (int i = 0; i < count; ++i) {
    Request q;
    std::vector<TokenId>& family = families[static_cast<size_t>(r.number(0, families_count - 1))];
    const int64_t shared = r.once_in(5) ? 0 : r.number(1, longest);
    q.prompt.edit().assign(family.begin(), family.begin() + shared);
    const std::vector<TokenId> own = random_tokens(r, r.number(1, r.once_in(3) ? 64 : 12));
    q.prompt.edit().insert(q.prompt.end(), own.begin(), own.end());
    if (r.once_in(6))
      family = q.prompt.vector(), family.resize(static_cast<size_t>(longest), 77);  // others go on from here
    q.max_tokens = r.number(1, output > 100 || r.once_in(3) ? output : 20);
    q.ignore_eos = !r.once_in(3);
    q.priority = static_cast<int32_t>(r.number(0, 1));
    q.sampling.seed = static_cast<uint64_t>(i);
    if (r.once_in(2)) q.sampling.temperature = 1.0f;
    if (r.once_in(4)) q.sampling.repetition_penalty = 1.3f;
    if (r.once_in(5)) q.sampling.frequency_penalty = 0.5f;
    if (r.once_in(6)) q.cache_salt = "another";
    if (r.once_in(6)) q.cache_positions = {r.number(0, longest)};
    step += r.number(0, r.once_in(8) ? 20 : 1);
    const int64_t cancelled = r.once_in(7) ? step + r.number(0, 30) : -1;
    s.push_back({std::move(q), step, cancelled});
  }
  return s;
}

// What each request gets alone, on an engine that has served nobody.
std::vector<Heard> each_alone(const ModelPtr& model, const std::vector<Arrival>& script, const EngineOptions& like) {
  std::vector<Heard> all;
  EngineOptions o = like;
  o.prefix_cache = false;
  o.swap_bytes = o.prefix_host_bytes = 0;
  o.depth = 1;
  for (const Arrival& a : script) all.push_back(hear_one(*make_engine(model, o), a.request));
  return all;
}

void expect_as_alone(const std::vector<Arrival>& script, const std::vector<Heard>& want,
                     const std::vector<Heard>& got) {
  for (size_t i = 0; i < want.size(); ++i) {
    SCOPED_TRACE(testing::Message() << "request " << i << " of " << script[i].request.prompt.size() << " tokens, "
                                    << got[i].cached << " found");
    EXPECT_EQ(got[i].ends, 1);
    EXPECT_LT(got[i].cached, std::ssize(script[i].request.prompt));
    if (got[i].finish != FinishReason::kCancelled) {
      EXPECT_EQ(got[i].tokens, want[i].tokens);
      EXPECT_EQ(got[i].text, want[i].text);
      EXPECT_EQ(got[i].finish, want[i].finish);
      continue;
    }
    EXPECT_GE(script[i].cancelled, 0);
    ASSERT_LE(got[i].tokens.size(), want[i].tokens.size());
    EXPECT_TRUE(std::equal(got[i].tokens.begin(), got[i].tokens.end(), want[i].tokens.begin()));
  }
}

struct CacheSetting {
  bool cache;
  int depth;
  int64_t kv_tokens;
  int32_t host_blocks;
  int32_t states;
  int32_t batch;
  // Of the host for the prefix cache: blocks, and as many more as so many saved states take.
  int32_t pages = 0, host_states = 0;
  int32_t first_tokens = 0;  // so many prompts without a first token go first
  KvCacheType kv = KvCacheType::kAuto;
  int stages = 1;
};

EngineOptions options_of(const ModelPtr& model, const CacheSetting& s, int64_t context) {
  EngineOptions o{.threads = 1,
                  .context = context,
                  .max_sequences = 6,
                  .max_batch_tokens = s.batch,
                  .kv_tokens = s.kv_tokens,
                  .depth = s.depth};
  o.prefix_cache = s.cache;
  o.state_checkpoints = s.states;
  o.kv_cache = s.kv;
  o.pipeline_parallel = s.stages;
  const CacheShape shape = model->model->cache_shape(Device::kCpu, s.kv);
  const int64_t block = unit_bytes(shape, "kv"), state = unit_bytes(shape, "state");
  o.swap_bytes = s.host_blocks * block;
  o.prefix_host_bytes = s.pages * block + s.host_states * (state + block);
  o.first_token_threshold = s.first_tokens;
  o.patience_steps = 20;
  o.shuffle_blocks = 7;
  return o;
}

struct Totals {
  int64_t hits = 0, preemptions = 0, stored = 0, loaded = 0, skipped = 0;
};

// What the records of an engine's steps come to.
struct Recorded {
  int64_t steps = 0, decodes = 0, prompts = 0, swapped_out = 0, swapped_in = 0, stored = 0, loaded = 0, skipped = 0;

  void add(const StepRecord& r) {
    EXPECT_EQ(r.step, ++steps);
    EXPECT_TRUE(r.skipped == 0 || r.first_tokens);
    decodes += r.decode_rows;
    prompts += r.prompt_rows;
    swapped_out += r.swapped_out;
    swapped_in += r.swapped_in;
    stored += r.host_stored;
    loaded += r.host_loaded;
    skipped += r.skipped;
  }
  void expect_sums_of(const StepStats& s) const {
    EXPECT_EQ(steps, s.steps);
    EXPECT_EQ(decodes, s.decode_tokens);
    EXPECT_EQ(prompts, s.prompt_tokens);
    EXPECT_EQ(swapped_out, s.blocks_swapped_out);
    EXPECT_EQ(swapped_in, s.blocks_swapped_in);
    EXPECT_EQ(stored > 0, s.host_bytes_stored > 0);
    EXPECT_EQ(loaded > 0, s.host_bytes_loaded > 0);
  }
};

void prove(const ModelPtr& model, const std::vector<Arrival>& script, int64_t context,
           std::span<const CacheSetting> settings, Totals& totals) {
  const std::vector<Heard> want = each_alone(model, script, options_of(model, settings[0], context));
  for (const CacheSetting& s : settings) {
    SCOPED_TRACE(testing::Message() << "cache " << s.cache << ", depth " << s.depth << ", " << s.kv_tokens
                                    << " tokens, " << s.host_blocks << " blocks of the host, " << s.states
                                    << " states, " << s.batch << " a step, " << s.pages << " blocks and "
                                    << s.host_states << " states of the cache on the host, " << s.first_tokens
                                    << " first tokens");
    const auto engine = make_engine(model, options_of(model, s, context));
    Recorded recorded;
    engine->observe_steps([&](const StepRecord& r) { recorded.add(r); });
    expect_as_alone(script, want, play(*engine, script));
    while (engine->step()) continue;  // what is under way
    const StepStats stats = engine->stats();
    recorded.expect_sums_of(stats);
    EXPECT_EQ(stats.prefix_hits > 0, s.cache && (s.states > 0 || !model->model->config().has_state()));
    EXPECT_TRUE(s.host_blocks > 0 || stats.preemptions == 0);
    totals.hits += stats.prefix_hits;
    totals.preemptions += stats.preemptions;
    totals.stored += stats.host_bytes_stored;
    totals.loaded += stats.host_bytes_loaded;
    totals.skipped += recorded.skipped;
    EXPECT_TRUE(s.first_tokens > 0 || recorded.skipped == 0);
    EXPECT_TRUE(s.pages > 0 || stats.host_bytes_stored == 0);
    if (testing::Test::HasFailure()) return;
  }
}

constexpr CacheSetting kSettings[] = {
    {true, 1, 4096, 0, 24, 256},
    {true, 2, 4096, 0, 24, 128},
    {true, 1, 512, 0, 5, 128},
    {true, 2, 512, 40, 5, 128},
    {true, 1, 512, 200, 24, 64},
    {true, 2, 512, 200, 2, 256},
    {false, 1, 512, 200, 0, 128},
    {false, 2, 512, 30, 0, 256},
    {true, 2, 512, 8, 3, 192},
    // With memory of the host for the cache: for all of it, for a little, and for less than a state.
    {true, 1, 512, 200, 5, 128, 300, 20},
    {true, 2, 512, 40, 3, 128, 300, 20},
    {true, 1, 512, 0, 3, 256, 60, 3},
    {true, 2, 512, 200, 2, 192, 60, 3},
    {true, 2, 1024, 8, 5, 64, 40, 1},
    {true, 1, 512, 40, 5, 128, 8, 0},
    {false, 2, 512, 40, 0, 128, 300, 20},
    // Prompts first.
    {true, 1, 4096, 0, 24, 64, 0, 0, 1},
    {true, 2, 1024, 40, 5, 64, 300, 20, 2},
    {false, 2, 2048, 0, 0, 128, 0, 0, 1},
    // On two devices.
    {true, 2, 512, 40, 5, 128, 300, 20, 0, KvCacheType::kAuto, 2},
    {true, 1, 1024, 8, 5, 64, 40, 2, 1, KvCacheType::kAuto, 2},
};

TEST(Prefixes, TextsAreThoseOfRequestsAlone) {
  for (const char* name : {"tiny-qwen35moe", "tiny-llama", "tiny-gemma3"}) {  // the last one with windows
    Totals totals;
    const ModelPtr model = tiny(name);
    // Long prompts, whose saved states make room for each other; and long answers, whose blocks do.
    const std::vector<Arrival> scripts[] = {prefix_script(1, 40, 350, 30), prefix_script(2, 40, 180, 150)};
    for (const std::vector<Arrival>& script : scripts) {
      SCOPED_TRACE(testing::Message() << name << ", script " << &script - scripts);
      prove(model, script, 512, kSettings, totals);
      if (HasFailure()) return;
    }
    EXPECT_GT(totals.hits, 10000);
    EXPECT_GT(totals.preemptions, 20);
    EXPECT_GT(totals.stored, 0);
    EXPECT_GT(totals.loaded, 0);
    EXPECT_GT(totals.skipped, 0);
  }
}

TEST(Prefixes, BlocksOfAnotherTypeToo) {
  Totals totals;
  constexpr KvCacheType kFp8 = KvCacheType::kFp8;
  constexpr CacheSetting kNarrow[] = {{true, 1, 4096, 0, 24, 256, 0, 0, 0, kFp8},
                                      {true, 2, 512, 40, 5, 128, 0, 0, 0, kFp8},
                                      {true, 1, 512, 200, 24, 64, 40, 6, 0, kFp8},
                                      {false, 2, 512, 30, 0, 192, 0, 0, 0, kFp8}};
  for (const char* name : {"tiny-qwen35moe", "tiny-llama"}) {
    SCOPED_TRACE(name);
    prove(tiny(name), prefix_script(5, 30, 180, 150), 512, kNarrow, totals);
    if (HasFailure()) return;
  }
  EXPECT_GT(totals.hits, 0);
  EXPECT_GT(totals.preemptions, 0);
}

// Layers that attend to a window, whose blocks come and go beside the others'.
TEST(Prefixes, WindowsOfEveryKindToo) {
  Totals totals;
  constexpr CacheSetting kFew[] = {{true, 1, 4096, 0, 24, 256},
                                   {true, 2, 512, 40, 2, 128},
                                   {true, 1, 512, 200, 1, 64, 300, 20},
                                   {false, 2, 512, 30, 0, 192},
                                   {true, 2, 1024, 40, 5, 64, 60, 0, 2}};
  for (const char* name : {"tiny-gptoss", "tiny-gemma4", "tiny-gemma4moe", "tiny-gemma4e"}) {
    SCOPED_TRACE(name);
    prove(tiny(name), prefix_script(6, 30, 250, 120), 512, kFew, totals);
    if (HasFailure()) return;
  }
  EXPECT_GT(totals.hits, 1000);
  EXPECT_GT(totals.preemptions, 0);
  EXPECT_GT(totals.loaded, 0);
}

// The same with the models that come with the source, whose saved states are large.
class DemoPrefixes : public testing::TestWithParam<const char*> {};

TEST_P(DemoPrefixes, TextsAreThoseOfRequestsAlone) {
  const ModelPtr model = load_or_die(fmt::format("{}/models/demo-{}-nvfp4.gguf", QUIRE_SOURCE_DIR, GetParam()));
  Totals totals;
  constexpr CacheSetting kFew[] = {{true, 2, 256, 200, 6, 128},         {true, 1, 256, 10, 24, 256},
                                   {false, 2, 256, 200, 0, 128},        {true, 1, 256, 0, 2, 192},
                                   {true, 1, 256, 10, 2, 128, 200, 20}, {true, 2, 256, 200, 3, 128, 200, 20},
                                   {true, 2, 256, 0, 2, 256, 24, 2}};
  prove(model, prefix_script(3, 14, 100, 110, 2), 256, kFew, totals);
  EXPECT_GT(totals.hits, 0);
  EXPECT_GT(totals.preemptions, 0);
  EXPECT_GT(totals.loaded, 0);
}
INSTANTIATE_TEST_SUITE_P(Models, DemoPrefixes, testing::Values("dense", "moe"),
                         [](const auto& of) { return std::string(of.param); });

// Saved states, restored ones and swapped blocks are data of steps: nothing but the backend touches its memory.
TEST(Prefixes, NobodyElseTouchesTheBackendsMemory) {
  const ModelPtr model = tiny("tiny-qwen35moe");
  const std::vector<Arrival> script = prefix_script(4, 30, 180, 150);
  for (const int depth : {1, 2}) {
    const EngineOptions o = options_of(model, {true, depth, 512, 60, 3, 128, 200, 20}, 512);
    const auto plain = make_engine(model, o);
    const auto guarded = make_engine(model, o, make_protected_backend);
    const std::vector<Heard> one = play(*plain, script), two = play(*guarded, script);
    for (size_t i = 0; i < one.size(); ++i)
      if (one[i].finish != FinishReason::kCancelled && two[i].finish != FinishReason::kCancelled) {
        EXPECT_EQ(one[i].tokens, two[i].tokens);
      }
    EXPECT_GT(guarded->stats().preemptions, 0);
    EXPECT_GT(guarded->stats().prefix_hits, 0);
    EXPECT_GT(guarded->stats().host_bytes_loaded, 0);
  }
}

class SharedPrefix : public testing::TestWithParam<const char*> {
 protected:
  static Request request(std::vector<TokenId> prompt, int64_t max_tokens = 4) {
    return request_of(std::move(prompt), max_tokens);
  }
  std::unique_ptr<Engine> make(EngineOptions o = {}) const {
    o.threads = 1;
    o.context = 2048;
    o.max_sequences = 32;
    o.kv_tokens = 16384;
    o.prefix_cache = true;
    return make_engine(tiny(GetParam()), o);
  }
  static std::vector<TokenId> extended(std::vector<TokenId> t, const std::vector<TokenId>& by) {
    t.insert(t.end(), by.begin(), by.end());
    return t;
  }
  Random random_{42};
};
INSTANTIATE_TEST_SUITE_P(Models, SharedPrefix, testing::Values("tiny-qwen35moe", "tiny-llama", "tiny-gptoss"),
                         [](const auto& of) {
                           const std::string name = of.param;
                           return name == "tiny-llama" ? "llama" : name == "tiny-gptoss" ? "windows" : "hybrid";
                         });

// 32 clients at once, none of whose 1500 common tokens anybody has computed yet; then 32 more.
TEST_P(SharedPrefix, IsComputedOnceHoweverManyAskForItAtOnce) {
  const auto engine = make();
  const std::vector<TokenId> shared = random_tokens(random_, 1500);
  int64_t asked = 0;
  for (int round = 0; round < 2; ++round) {
    std::deque<Heard> heard(32);
    for (Heard& h : heard) {
      const Request r = request(extended(shared, random_tokens(random_, 8)));
      asked += std::ssize(r.prompt);
      engine->submit(r, h.listener()).value();
    }
    while (engine->busy()) engine->step();
    for (const Heard& h : heard) EXPECT_EQ(h.ends, 1);
  }
  const StepStats s = engine->stats();
  EXPECT_EQ(s.prefix_queries, asked);
  EXPECT_EQ(s.prefix_hits, 63 * 1472);
  EXPECT_EQ(s.prompt_tokens, asked - s.prefix_hits);
  EXPECT_GT(asked, 25 * s.prompt_tokens);
}

TEST_P(SharedPrefix, IsComputedByAnotherWhenTheFirstOneIsCancelled) {
  const auto engine = make({.max_batch_tokens = 128});
  const std::vector<TokenId> shared = random_tokens(random_, 1500);
  std::deque<Heard> heard(6);
  std::vector<RequestId> ids;
  for (Heard& h : heard)
    ids.push_back(engine->submit(request(extended(shared, random_tokens(random_, 8))), h.listener()).value());
  for (size_t i = 0; i < 4; ++i) {
    for (int step = 0; step < 5; ++step) engine->step();
    engine->cancel(ids[i]);
  }
  while (engine->busy()) engine->step();
  EXPECT_TRUE(engine->check().ok());
  EXPECT_EQ(heard[0].finish, FinishReason::kCancelled);
  for (size_t i = 4; i < 6; ++i) EXPECT_EQ(heard[i].finish, FinishReason::kLength);
  // With recurrent layers what a cancelled one computed is of use only up to a state that it saved, at the earliest
  // after 1024 tokens.
  const bool recurrent = GetParam() == std::string("tiny-qwen35moe");
  EXPECT_LE(engine->stats().prompt_tokens, 1700 + (recurrent ? 4 * 640 : 0));
}

TEST_P(SharedPrefix, OneOtherTokenOrAnotherSaltIsAnotherPrefix) {
  const auto engine = make();
  const Request r = request(random_tokens(random_, 300), 20);
  const Heard first = hear_one(*engine, r);
  EXPECT_EQ(first.cached, 0);
  const Heard again = hear_one(*engine, r);
  EXPECT_EQ(again.cached, 256);
  EXPECT_EQ(again.tokens, first.tokens);
  Request salted = r;
  salted.cache_salt = "x";
  EXPECT_EQ(hear_one(*engine, salted).cached, 0);
  EXPECT_EQ(hear_one(*engine, salted).cached, 256);
  // Not every other token changes what follows: one that does would tell a stale hit.
  Request other = r;
  std::vector<TokenId> alone;
  for (int tries = 0; tries < 20 && (alone.empty() || alone == first.tokens); ++tries) {
    ++other.prompt.edit()[3];
    alone = hear_one(*make(), other).tokens;
  }
  ASSERT_NE(alone, first.tokens);
  const Heard different = hear_one(*engine, other);
  EXPECT_EQ(different.cached, 0);
  EXPECT_EQ(different.tokens, alone);
  const StepStats s = engine->stats();
  const auto misses = [&](PrefixMiss m) { return s.prefix_misses[static_cast<size_t>(m)]; };
  EXPECT_EQ(misses(PrefixMiss::kNone), 2);
  EXPECT_EQ(misses(PrefixMiss::kNew) + misses(PrefixMiss::kDiverged), 3);
}

// Conversations: each turn is the one before with 64 tokens more. All but the last chunk or so is found.
TEST_P(SharedPrefix, TurnsOfAConversationGoOnFromEachOther) {
  const auto engine = make();
  std::vector<TokenId> prompt = random_tokens(random_, 100);
  for (int turn = 0; turn < 12; ++turn) {
    const Heard h = hear_one(*engine, request(prompt));
    if (turn > 0) {
      EXPECT_GE(h.cached, std::ssize(prompt) - 64 - 128) << "turn " << turn;
    }
    prompt = extended(prompt, random_tokens(random_, 64));
  }
}

// A second prompt that leaves a long one late has the place saved, and the third one goes on from there.
TEST_P(SharedPrefix, PlacesWherePromptsPartAreRemembered) {
  const auto engine = make();
  const std::vector<TokenId> base = random_tokens(random_, 900);
  const auto leaves = [&](int64_t at) {
    return request(extended({base.begin(), base.begin() + at}, random_tokens(random_, 100)));
  };
  hear_one(*engine, request(base));
  const bool recurrent = GetParam() == std::string("tiny-qwen35moe");
  EXPECT_EQ(hear_one(*engine, leaves(500)).cached, recurrent ? 0 : 448);
  EXPECT_EQ(hear_one(*engine, leaves(500)).cached, 448);
  EXPECT_EQ(hear_one(*engine, leaves(500)).cached, 448);
  Request asks = request(random_tokens(random_, 600));
  asks.cache_positions = {333};
  hear_one(*engine, asks);
  asks.prompt.edit().resize(340);
  asks.cache_positions.clear();
  EXPECT_EQ(hear_one(*engine, asks).cached, 320);
}

}  // namespace
}  // namespace quire::test
