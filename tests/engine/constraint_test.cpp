// Constrained answers: they obey, each is the same alone and among others, and what cannot go on ends alone.
#include <gtest/gtest.h>

#include <regex>
#include <thread>

#include "engine/constraints.h"
#include "engine/engine_rig.h"
#include "server/protocol/json.h"
#include "support/failing_backend.h"
#include "support/seeds.h"

namespace quire::test {
namespace {

using namespace std::chrono_literals;

class Constraints : public testing::Test {
 protected:
  void SetUp() override {
    if (!has_grammars()) GTEST_SKIP() << "built without XGrammar";
  }
  // One of them arrives before each step.
  std::vector<Heard> together(const EngineOptions& o, const std::vector<Request>& requests) const {
    std::vector<Arrival> script;
    for (const Request& r : requests) script.push_back({.request = r, .arrives = std::ssize(script)});
    return play(*make_engine(model_, o), script);
  }
  Heard run(Request r) const { return hear_one(*make_engine(model_, six_sequences()), std::move(r)); }
  static Request request(int32_t seed, std::shared_ptr<const Constraint> constraint, int64_t max_tokens = 120) {
    Request r;
    r.prompt = tokens(20 + seed % 50, seed % 4);
    r.max_tokens = max_tokens;
    r.sampling.seed = static_cast<uint64_t>(seed);
    r.sampling.temperature = seed % 3 == 0 ? 0.0f : 1.0f;
    if (seed % 4 == 1) r.sampling.top_p = 0.9f;
    if (seed % 5 == 1) r.sampling.repetition_penalty = 1.2f;
    r.sampling.logprobs = 0;
    r.constraint = std::move(constraint);
    return r;
  }
  ModelPtr model_ = tiny("tiny-qwen35moe");
};

TEST_F(Constraints, EachAnswerIsTheSameAloneAndAmongOthers) {
  const auto all = all_constraints(model_);
  const Seeds two = seeds_or(2);
  for (int seed = two.first; seed <= two.last; ++seed) {
    std::vector<Request> requests;
    for (int i = 0; i < 24; ++i)
      requests.push_back(request(seed * 100 + i, i % 4 == 3 ? nullptr : all[static_cast<size_t>(i) % all.size()], 60));
    std::vector<Heard> alone;
    for (const Request& r : requests) alone.push_back(run(r));
    for (const int depth : {1, 2})
      for (const bool drafts : {false, true}) {
        EngineOptions o = six_sequences();
        o.depth = depth;
        o.kv_tokens = 480;
        o.swap_bytes = int64_t{1} << 24;
        o.prefix_cache = true;
        o.state_checkpoints = 4;
        if (!drafts) o.speculative.mode = Speculative::kOff;
        const std::vector<Heard> among = together(o, requests);
        for (size_t i = 0; i < alone.size(); ++i) {
          SCOPED_TRACE(fmt::format("seed {}, depth {}, drafts {}, request {}", seed, depth, drafts, i));
          EXPECT_EQ(alone[i].tokens, among[i].tokens);
          EXPECT_EQ(alone[i].logprobs, among[i].logprobs);
          EXPECT_EQ(alone[i].text, among[i].text);
          EXPECT_EQ(alone[i].finish, among[i].finish);
          EXPECT_NE(alone[i].finish, FinishReason::kError) << alone[i].message();
        }
      }
  }
}

TEST_F(Constraints, AnswersObey) {
  const auto person = constraint_of(model_, {GrammarKind::kJsonSchema, kPersonSchema});
  const auto pattern = constraint_of(model_, {GrammarKind::kRegex, "(ab|cd){2,9}[0-9]+"});
  int ended = 0;
  for (int seed = 0; seed < 10; ++seed) {
    const Heard h = run(request(seed, person, 300));
    if (h.finish == FinishReason::kStop) {
      const server::Json json = server::Json::parse(h.text, nullptr, false);
      ASSERT_TRUE(json.is_object()) << h.text;
      EXPECT_LE(json["name"].get<std::string>().size(), 48u);
      EXPECT_TRUE(json["age"].is_number_integer()) << h.text;
      EXPECT_EQ(json.size(), 3u);
      ++ended;
    }
    const Heard text = run(request(seed, pattern, 300));
    if (text.finish == FinishReason::kStop) {
      EXPECT_TRUE(std::regex_match(text.text, std::regex("(ab|cd){2,9}[0-9]+"))) << text.text;
    }
  }
  EXPECT_GT(ended, 2);
}

TEST_F(Constraints, MaxTokensCutsAStructure) {
  const Heard h = run(request(1, constraint_of(model_, {GrammarKind::kJsonSchema, kPersonSchema}), 5));
  EXPECT_EQ(h.finish, FinishReason::kLength);
  EXPECT_EQ(h.tokens.size(), 5u);
  EXPECT_TRUE(h.text.starts_with("{")) << h.text;
}

TEST_F(Constraints, ACompleteTextEndsWhateverElseIsSaid) {
  Request r = request(2, constraint_of(model_, {GrammarKind::kRegex, "yes"}));
  r.min_tokens = 50;
  r.ignore_eos = true;
  const Heard h = run(r);
  EXPECT_EQ(h.finish, FinishReason::kStop);
  EXPECT_TRUE(h.text.starts_with("yes")) << h.text;
}

TEST_F(Constraints, WhereNothingIsPossibleTheRequestAloneEnds) {
  Constraint c = *constraint_of(model_, {GrammarKind::kRegex, "[a-c]{30}"});
  c.allowed.assign(static_cast<size_t>(mask_words(model_->model->config().vocab)), 0u);
  const std::vector<Request> both = {request(1, std::make_shared<const Constraint>(c)), request(2, nullptr)};
  const std::vector<Heard> heard = together(six_sequences(), both);
  EXPECT_EQ(heard[0].finish, FinishReason::kError);
  EXPECT_NE(heard[0].message().find("no token is possible"), std::string::npos) << heard[0].message();
  EXPECT_EQ(heard[1].tokens, run(both[1]).tokens);
}

TEST_F(Constraints, AGrammarBeginsBehindAText) {
  int begun = 0;
  for (int seed = 0; seed < 12; ++seed) {
    const Heard h = run(request(seed, constraint_of(model_, {GrammarKind::kRegex, "[a-z]{5}!"}, "e")));
    const size_t at = h.text.find('e');
    if (at == std::string::npos || h.finish != FinishReason::kStop) continue;
    ++begun;
    EXPECT_TRUE(std::regex_match(h.text.substr(at + 1), std::regex("[a-z]{5}!"))) << h.text;
  }
  EXPECT_GT(begun, 0);
}

TEST_F(Constraints, TokensAreAllowedAndWordsAreBad) {
  const auto all = all_constraints(model_);
  for (int seed = 0; seed < 6; ++seed) {
    for (const TokenId t : run(request(seed, all[all.size() - 2])).tokens) EXPECT_EQ(t % 2, 0);
    const std::vector<TokenId> free = run(request(seed, all.back())).tokens;
    for (size_t i = 0; i < free.size(); ++i) {
      EXPECT_FALSE(free[i] >= 40 && free[i] < 100);
      if (i > 0 && free[i] >= 100) {
        EXPECT_NE(free[i], free[i - 1]);
      }
    }
  }
}

TEST_F(Constraints, ForcedTokensAreDraftsThatAreRight) {
  EngineOptions o = six_sequences();
  o.speculative = {.mode = Speculative::kLookup, .tokens = 7, .adaptive = false};
  const auto engine = make_engine(model_, o);
  const std::string text = "this text has no choice at all, wherever one looks";
  const Heard h = hear_one(*engine, request(3, constraint_of(model_, {GrammarKind::kRegex, text})));
  EXPECT_EQ(h.text, text);
  const StepStats s = engine->stats();
  EXPECT_GT(s.drafts_accepted, 10);
  EXPECT_GT(s.masks, 0);
}

// Masks that take longer than the pass of one step at least, on however busy a machine.
TEST_F(Constraints, StepsThatWaitForMasksAreCounted) {
  const auto slow = failing_backend({.step = -1, .before_masks = [] { std::this_thread::sleep_for(20ms); }});
  const auto engine = make_engine(model_, six_sequences(), slow);
  const auto wait_count = [&](std::shared_ptr<const Constraint> constraint) {
    engine->submit(request(3, std::move(constraint), 40), [](const TokenEvent&) {}).value();
    while (engine->busy()) engine->step();
    return engine->stats().mask_waits;
  };
  EXPECT_EQ(wait_count(nullptr), 0);
  const int64_t waits = wait_count(constraint_of(model_, {GrammarKind::kRegex, "[a-z]{40}"}));
  EXPECT_GT(waits, 0);
  EXPECT_LE(waits, 41);
}

}  // namespace
}  // namespace quire::test
