// What tests of whole engines share: the small random models, prompts and requests for them, and what is heard of a
// request.
#pragma once

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "support/golden.h"
#include "support/tiny_models.h"

namespace quire::test {

// The model of this name, loaded once in a process.
inline const ModelPtr& tiny(const std::string& name) {
  static std::map<std::string, ModelPtr> loaded;
  ModelPtr& model = loaded[name];
  for (const TinyModel& m : tiny_models())
    if (model == nullptr && m.name == name) model = load_or_die(TinyModelFile(m).path());
  QUIRE_CHECK(model != nullptr, "there is no {}", name);
  return model;
}

// In the vocabulary of every tiny model. With another seed they differ from the first one on.
inline std::vector<TokenId> tokens(int64_t count, int32_t seed) {
  std::vector<TokenId> t(static_cast<size_t>(count));
  for (size_t i = 0; i < t.size(); ++i)
    t[i] = 30 + static_cast<TokenId>((i * 37 + i * i * 11 + static_cast<size_t>(seed) * 53) % 270);
  return t;
}

// Greedy, and as long as it says: no token ends it.
inline Request request_of(std::vector<TokenId> prompt, int64_t max_tokens) {
  Request r;
  r.prompt = std::move(prompt);
  r.max_tokens = max_tokens;
  r.ignore_eos = true;
  return r;
}

// What a listener heard of one request.
struct Heard {
  // Of the beginning.
  int64_t cached = 0;
  PrefixMiss miss = PrefixMiss::kNone;
  PromptLogprobs prompt;
  int prompts = 0, prompt_event = -1;  // how many events had some, and the number of the last of these
  // Of the tokens, an entry for each one; or of the embedding.
  std::vector<TokenId> tokens;
  std::vector<float> logprobs;
  std::vector<std::vector<std::pair<TokenId, float>>> tops;
  std::string text;
  std::vector<float> embedding;
  // Of the end.
  FinishReason finish = FinishReason::kNone;
  std::optional<Error> error;
  bool admitted = false;
  int events = 0, ends = 0;

  // Of the error; empty where there is none.
  std::string message() const { return error ? error->message : std::string(); }

  void take(const TokenEvent& e) {
    EXPECT_EQ(ends, 0) << "nothing comes after the end";
    if (const auto* const begun = e.as<TokenEvent::Begun>()) {
      cached = begun->cached_tokens;
      miss = begun->prefix_miss;
      if (begun->prompt != nullptr) prompt = *begun->prompt, prompt_event = events, ++prompts;
    } else if (const auto* const token = e.as<TokenEvent::Token>()) {
      tokens.push_back(token->id);
      logprobs.push_back(token->logprob);
      auto& top = tops.emplace_back();
      for (const TokenLogprob& t : token->top) top.emplace_back(t.token, t.logprob);
      text += token->text;
    } else if (const auto* const vector = e.as<TokenEvent::Embedding>()) {
      embedding = vector->values;
    } else if (const auto* const ended = e.as<TokenEvent::Ended>()) {
      finish = ended->finish;
      error = ended->error;
      admitted = ended->admitted.has_value();
      ++ends;
    }
    ++events;
  }
  // This must stay where it is until the request has ended.
  Listener listener() {
    return [this](const TokenEvent& e) { take(e); };
  }
};

inline std::unique_ptr<Engine> make_engine(const ModelPtr& model, EngineOptions o,
                                           const BackendFactory& backend = make_backend) {
  return std::move(Engine::create(model, std::move(o), backend)).value();
}

// For a few sequences that are in each other's way.
inline EngineOptions six_sequences() {
  return {.threads = 2, .context = 400, .max_sequences = 6, .max_batch_tokens = 128, .kv_tokens = 1600};
}

// Until everything has ended, with a look at the books after every step.
inline void finish(Engine& engine) {
  while (engine.busy()) {
    engine.step();
    const Status books = engine.check();
    ASSERT_TRUE(books.ok()) << books.error().message;
  }
}

// One request, and everything else that the engine still has to do.
inline Heard hear_one(Engine& engine, Request r) {
  const auto heard = std::make_shared<Heard>();  // the listener's too, which hears more if the books are wrong
  engine.submit(std::move(r), [heard](const TokenEvent& e) { heard->take(e); }).value();
  finish(engine);
  EXPECT_EQ(heard->ends, 1);
  return *heard;
}

// A request of a script.
struct Arrival {
  Request request;
  int64_t arrives = 0, cancelled = -1;  // before this step; -1: never
};

// Runs a script, in order of arrival, to its end, and adds to `steps` how many it took.
inline std::vector<Heard> play(Engine& engine, const std::vector<Arrival>& script, int64_t* steps = nullptr) {
  const auto heard = std::make_shared<std::deque<Heard>>(script.size());  // as in hear_one
  std::vector<RequestId> ids(script.size());
  size_t arrived = 0;
  int64_t step = 0;
  for (; arrived < ids.size() || engine.busy(); ++step) {
    for (; arrived < ids.size() && script[arrived].arrives <= step; ++arrived)
      ids[arrived] =
          engine.submit(script[arrived].request, [heard, arrived](const TokenEvent& e) { (*heard)[arrived].take(e); })
              .value();
    for (size_t i = 0; i < arrived; ++i)
      if (script[i].cancelled == step) engine.cancel(ids[i]);
    engine.step();
    const Status books = engine.check();
    EXPECT_TRUE(books.ok()) << books.error().message << " in step " << step;
    EXPECT_LE(step, 100000) << "never ends";
    if (!books.ok() || step > 100000) break;
  }
  if (steps != nullptr) *steps += step;
  return {heard->begin(), heard->end()};
}

}  // namespace quire::test
