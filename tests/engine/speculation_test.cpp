// Speculation changes no text: whatever is drafted, right or wrong, tokens, log-probabilities and ends are those of an
// engine that drafts nothing.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "engine/constraints.h"
#include "engine/engine_rig.h"
#include "support/seeds.h"

namespace quire::test {
namespace {

// What plain engines answered, by prompt: drafts that are right are taken from it.
using Truth = std::map<std::vector<TokenId>, std::vector<TokenId>>;

int64_t number(std::mt19937_64& rng, int64_t lo, int64_t hi) {
  return std::uniform_int_distribution<int64_t>(lo, hi)(rng);
}

// A request of every kind. Some begin as others do.
Request random_related_request(std::mt19937_64& rng, int64_t vocab) {
  Request r;
  const auto length = static_cast<size_t>(number(rng, 1, number(rng, 0, 3) == 0 ? 300 : 40));
  const int64_t family = number(rng, 0, 3);
  std::mt19937_64 shared(static_cast<uint64_t>(family));
  for (size_t i = 0; i < length; ++i)
    r.prompt.edit().push_back(static_cast<TokenId>(number(i < 128 && family > 0 ? shared : rng, 30, vocab - 20)));
  r.max_tokens = number(rng, 1, 60);
  r.ignore_eos = number(rng, 0, 1) == 0;
  r.sampling.seed = static_cast<uint64_t>(number(rng, 0, 1000));
  if (number(rng, 0, 2) > 0) r.sampling.temperature = 0.5f * static_cast<float>(number(rng, 1, 3));
  if (number(rng, 0, 3) == 0) r.sampling.top_p = 0.9f;
  if (number(rng, 0, 3) == 0) r.sampling.top_k = 20;
  if (number(rng, 0, 3) == 0) r.sampling.min_p = 0.05f;
  if (number(rng, 0, 5) == 0) r.sampling.repetition_penalty = 1.3f;
  if (number(rng, 0, 5) == 0) r.sampling.frequency_penalty = 0.5f;
  if (number(rng, 0, 3) == 0) r.sampling.logit_bias[static_cast<int32_t>(number(rng, 0, vocab - 1))] = 5.0f;
  if (number(rng, 0, 3) == 0) r.sampling.logprobs = static_cast<int>(number(rng, 0, 3));
  if (number(rng, 0, 3) == 0) r.stop = {std::string(1, static_cast<char>(number(rng, 'a', 'z')))};
  if (number(rng, 0, 5) == 0) r.min_tokens = number(rng, 1, r.max_tokens);
  return r;
}

std::vector<Arrival> speculation_script(const ModelPtr& model, uint64_t seed, int count, bool cancels) {
  std::mt19937_64 rng(seed);
  const int64_t vocab = model->model->config().vocab;
  std::vector<std::shared_ptr<const Constraint>> constraints;
  if (has_grammars()) constraints = all_constraints(model);
  std::vector<Arrival> s;
  int64_t step = 0;
  for (int i = 0; i < count; ++i) {
    step += number(rng, 0, 3);
    s.push_back(
        {random_related_request(rng, vocab), step, cancels && number(rng, 0, 6) == 0 ? step + number(rng, 0, 20) : -1});
    if (i % 3 == 0 && !constraints.empty())
      s.back().request.constraint = constraints[static_cast<size_t>(i / 3) % constraints.size()];
  }
  return s;
}

struct Played {
  std::vector<Heard> heard;
  StepStats stats;
};

Played serve(const ModelPtr& model, EngineOptions options, const std::vector<Arrival>& script) {
  const auto engine = make_engine(model, std::move(options));
  std::vector<Heard> heard = play(*engine, script);
  return {std::move(heard), engine->stats()};
}

void expect_drafts_changed_nothing(const std::vector<Heard>& plain, const std::vector<Heard>& drafted) {
  for (size_t i = 0; i < plain.size(); ++i) {
    SCOPED_TRACE(i);
    const Heard &a = plain[i], &b = drafted[i];
    EXPECT_EQ(a.ends, 1);
    EXPECT_EQ(b.ends, 1);
    const bool cut = a.finish == FinishReason::kCancelled || b.finish == FinishReason::kCancelled;
    const size_t both = std::min(a.tokens.size(), b.tokens.size());
    if (!cut) {
      EXPECT_EQ(a.tokens.size(), b.tokens.size());
      EXPECT_EQ(a.text, b.text);
      EXPECT_EQ(a.finish, b.finish);
    }
    for (size_t t = 0; t < both; ++t) {
      ASSERT_EQ(a.tokens[t], b.tokens[t]) << "token " << t;
      ASSERT_EQ(a.logprobs[t], b.logprobs[t]) << "token " << t;
      ASSERT_EQ(a.tops[t], b.tops[t]) << "token " << t;
    }
  }
}

// Drafts of what the plain engine answered, of which some are made wrong: from a random place on, or all but one.
DraftHook partly_right(const Truth& truth, uint64_t seed, int64_t vocab) {
  return [&truth, vocab, rng = std::mt19937_64(seed)](std::span<const TokenId> prompt, std::span<const TokenId> output,
                                                      int32_t most, std::vector<TokenId>& drafts) mutable {
    const auto known = truth.find({prompt.begin(), prompt.end()});
    if (known == truth.end()) return;
    const auto wrong = number(rng, 0, 9), count = number(rng, 0, most);
    for (int64_t i = 0; i < count && output.size() + static_cast<size_t>(i) < known->second.size(); ++i) {
      TokenId t = known->second[output.size() + static_cast<size_t>(i)];
      if (wrong == i) t = static_cast<TokenId>((t + 1 + number(rng, 0, vocab - 2)) % vocab);
      drafts.push_back(t);
    }
  };
}

// Blocks for fewer sequences than run, and prefixes that are found: nothing of either is a draft's business.
EngineOptions tight(bool prefixes) {
  EngineOptions o = six_sequences();
  o.kv_tokens = 480;
  o.swap_bytes = int64_t{1} << 24;
  o.prefix_cache = prefixes;
  o.state_checkpoints = 4;
  return o;
}

void check_drafts(const ModelPtr& model, const EngineOptions& plain_options, const SpeculativeOptions& how,
                  uint64_t seed, int64_t* accepted = nullptr) {
  const int64_t vocab = model->model->config().vocab;
  const std::vector<Arrival> script = speculation_script(model, seed, 24, true);
  const Played plain = serve(model, plain_options, script);
  Truth truth;
  for (size_t i = 0; i < script.size(); ++i) {
    const auto& prompt = script[i].request.prompt;
    truth[{prompt.begin(), prompt.end()}] = plain.heard[i].tokens;
  }
  EngineOptions drafts = plain_options;
  drafts.speculative = how;
  if (how.mode == Speculative::kOff) drafts.speculative.hook = partly_right(truth, seed, vocab);
  const Played drafted = serve(model, drafts, script);
  expect_drafts_changed_nothing(plain.heard, drafted.heard);
  if (accepted != nullptr) *accepted += drafted.stats.drafts_accepted;
}

class Speculation : public testing::TestWithParam<const char*> {};

TEST_P(Speculation, DraftsThatAreWrongAnywhereChangeNothing) {
  const ModelPtr model = tiny(GetParam());
  int64_t accepted = 0;
  const Seeds four = seeds_or(4);
  for (int seed = four.first; seed <= four.last; ++seed)
    for (const int32_t most : {1, 3, 7}) {
      SCOPED_TRACE(fmt::format("seed {}, {} drafts", seed, most));
      check_drafts(model, six_sequences(), {.tokens = most, .adaptive = false}, static_cast<uint64_t>(seed), &accepted);
    }
  EXPECT_GT(accepted, 100);
}

TEST_P(Speculation, NothingChangesWhereBlocksAreScarceAndPrefixesAreFound) {
  const ModelPtr model = tiny(GetParam());
  int64_t accepted = 0;
  const Seeds three = seeds_or(3);
  for (int seed = three.first; seed <= three.last; ++seed)
    for (const bool prefixes : {false, true}) {
      SCOPED_TRACE(fmt::format("seed {}, prefixes {}", seed, prefixes));
      check_drafts(model, tight(prefixes), {.adaptive = false}, static_cast<uint64_t>(seed), &accepted);
    }
  EXPECT_GT(accepted, 50);
}

INSTANTIATE_TEST_SUITE_P(Models, Speculation,
                         testing::Values("tiny-qwen35moe", "tiny-qwen35", "tiny-llama", "tiny-gemma3"),
                         [](const auto& name) {
                           std::string s = name.param;
                           std::replace(s.begin(), s.end(), '-', '_');
                           return s;
                         });

class DemoSpeculation : public testing::TestWithParam<const char*> {
 protected:
  ModelPtr model_ = load_or_die(fmt::format("{}/models/demo-{}-nvfp4.gguf", QUIRE_SOURCE_DIR, GetParam()));
};

TEST_P(DemoSpeculation, TheBlockDraftsAndChangesNothing) {
  ASSERT_EQ(model_->model->config().mtp_layers, 1);
  int64_t accepted = 0;
  for (const int32_t most : {1, 3, 7})
    for (const bool prefixes : {false, true}) {
      SCOPED_TRACE(fmt::format("{} drafts, prefixes {}", most, prefixes));
      check_drafts(model_, tight(prefixes), {.mode = Speculative::kMtp, .tokens = most, .adaptive = false}, 7,
                   &accepted);
    }
  for (const bool adaptive : {false, true}) {
    SCOPED_TRACE(fmt::format("on two devices, adaptive {}", adaptive));
    EngineOptions stages = tight(true);
    stages.pipeline_parallel = 2;
    check_drafts(model_, stages, {.mode = Speculative::kMtp, .tokens = 3, .adaptive = adaptive}, 9, &accepted);
    check_drafts(model_, stages, {.mode = Speculative::kAuto, .adaptive = adaptive}, 10);
  }
  EXPECT_GT(accepted, 50);
  // Two steps under way where nothing is drafted, and few rows for drafts.
  for (int seed = 8; seed < 12; ++seed) {
    EngineOptions deep = tight(true);
    deep.depth = 2;
    deep.max_batch_tokens = 64;
    check_drafts(model_, deep, {.mode = Speculative::kAuto}, static_cast<uint64_t>(seed));
  }
}

// A wrong hidden state or key would change no text, but drafts would be wrong more often.
TEST_P(DemoSpeculation, TheBlocksDraftsAreMostlyRight) {
  std::vector<Arrival> script;
  for (const char* text : {"Once there was a girl who", "One cold evening, the old man", "12 + 30 =", "The dog said"}) {
    Request r;
    r.prompt = model_->tokenizer->encode(text, {.add_special = true, .parse_special = false});
    r.max_tokens = 100;
    script.push_back({std::move(r)});
  }
  EngineOptions o = six_sequences();
  o.speculative = {.mode = Speculative::kMtp, .tokens = 3, .adaptive = false};
  const StepStats s = serve(model_, o, script).stats;
  const double first = static_cast<double>(s.accepted_at[0]) / static_cast<double>(s.drafted_sequences);
  const double second = static_cast<double>(s.accepted_at[1]) / static_cast<double>(s.accepted_at[0]);
  RecordProperty("acceptance", fmt::format("{:.3f}, {:.3f}", first, second));
  // Measured: 0.76 and 0.47 (dense), 0.85 and 0.31 (experts). With the hidden state of another row 0.53 and 0.52;
  // without the keys of generated tokens the second one of the dense model is 0.32.
  EXPECT_GT(first, 0.68);
  if (std::string_view(GetParam()) == "dense") {
    EXPECT_GT(second, 0.38);
  }
}

// Long enough that the counts on the device are brought up to date several times.
TEST_P(DemoSpeculation, PenaltiesCountWhatWasDrafted) {
  std::vector<Arrival> script;
  for (const float presence : {0.0f, 1.2f}) {
    Request r;
    r.prompt = model_->tokenizer->encode("Once there was a girl who", {.add_special = true, .parse_special = false});
    r.max_tokens = 200;
    r.ignore_eos = true;
    r.sampling.temperature = 0.5f;
    r.sampling.presence_penalty = presence;
    r.sampling.frequency_penalty = 0.1f;
    r.sampling.repetition_penalty = 1.1f;
    script.push_back({std::move(r)});
  }
  const Played plain = serve(model_, six_sequences(), script);
  for (const Speculative mode : {Speculative::kMtp, Speculative::kLookup, Speculative::kAuto}) {
    EngineOptions o = six_sequences();
    o.speculative = {.mode = mode, .tokens = 5, .adaptive = false};
    const Played drafted = serve(model_, o, script);
    expect_drafts_changed_nothing(plain.heard, drafted.heard);
    if (mode == Speculative::kMtp) {
      EXPECT_GT(drafted.stats.drafts_accepted, 100);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, DemoSpeculation, testing::Values("dense", "moe"),
                         [](const auto& name) { return std::string(name.param); });

}  // namespace
}  // namespace quire::test
