// Prompts with pictures for the small models that take them, on any device.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "engine/engine_rig.h"
#include "support/image_model.h"

namespace quire::test {

// Parts of a prompt: so many tokens of text, or a picture.
struct Part {
  int64_t text = 0;
  int image = -1, seed = 0;
};
inline Part text(int64_t n) {
  return {.text = n};
}
inline Part picture(int number, int seed = 0) {
  return {.image = number, .seed = seed};
}

inline Request with_images(const std::vector<Part>& parts, int64_t max_tokens, int32_t seed = 0,
                           ImageKind kind = ImageKind::kHybrid) {
  std::vector<TokenId> ids;
  std::vector<PromptImage> images;
  for (const Part& p : parts) {
    if (p.image < 0) {
      const std::vector<TokenId> more = tokens(p.text, seed + static_cast<int32_t>(ids.size()));
      ids.insert(ids.end(), more.begin(), more.end());
      continue;
    }
    images.push_back(prompt_image(static_cast<size_t>(p.image), std::ssize(ids), p.seed, kind));
    ids.insert(ids.end(), static_cast<size_t>(images.back().tokens()), kImagePad);
  }
  Request r = request_of(std::move(ids), max_tokens);
  r.images = std::make_shared<const PromptImages>(std::move(images));
  return r;
}

inline const nlohmann::json& golden(ImageKind kind = ImageKind::kHybrid) {
  static const std::map<ImageKind, nlohmann::json> all = [] {
    std::map<ImageKind, nlohmann::json> files;
    for (const auto& [of, name] : {std::pair{ImageKind::kHybrid, "qwen35"},
                                   {ImageKind::kDeepstack, "qwen3vl"},
                                   {ImageKind::kBothWays, "gemma3"},
                                   {ImageKind::kWindows, "gemma4"},
                                   {ImageKind::kPerLayer, "gemma4e"}}) {
      std::ifstream in(source_file(fmt::format("tests/data/golden/image-{}.json", name)));
      files[of] = nlohmann::json::parse(in);
    }
    return files;
  }();
  return all.at(kind);
}

inline Request golden_request(const nlohmann::json& prompt, ImageKind kind) {
  Request r = request_of(prompt.at("ids").get<std::vector<TokenId>>(), 1);
  std::vector<PromptImage> images;
  for (const nlohmann::json& image : prompt.at("images")) images.push_back(prompt_image(image[0], image[1], 0, kind));
  r.images = std::make_shared<const PromptImages>(std::move(images));
  return r;
}

// What the engine says of a prompt's tokens and of the next one, beside what transformers says.
struct Difference {
  double most = 0, squares = 0;  // of the tokens' log-probabilities
  int64_t tokens = 0;
  double divergence = 0;  // behind the prompts, the largest
};
inline void compare(const nlohmann::json& prompt, Engine& engine, ImageKind kind, Difference& d) {
  Request r = golden_request(prompt, kind);
  r.prompt_logprobs = 0;
  r.sampling.logprobs = 320;
  const Heard heard = hear_one(engine, std::move(r));
  const auto expected = prompt.at("logprobs").get<std::vector<double>>();
  const auto next = prompt.at("next").get<std::vector<double>>();
  ASSERT_EQ(heard.prompt.logprobs.size(), expected.size()) << heard.message();
  for (size_t i = 0; i < expected.size(); ++i) {
    const double error = expected[i] - static_cast<double>(heard.prompt.logprobs[i]);
    d.most = std::max(d.most, std::abs(error));
    d.squares += error * error;
  }
  d.tokens += std::ssize(expected);
  ASSERT_EQ(heard.tops.size(), 1u);
  ASSERT_EQ(heard.tops[0].size(), next.size());
  double divergence = 0;
  for (const auto& [token, logprob] : heard.tops[0]) {
    const double expected_logprob = next[static_cast<size_t>(token)];
    divergence += std::exp(expected_logprob) * (expected_logprob - static_cast<double>(logprob));
  }
  d.divergence = std::max(d.divergence, std::abs(divergence));
}
inline Difference compare(Device device, ImageKind kind) {
  const std::unique_ptr<Engine> engine =
      make_engine(image_model(Device::kCpu, kind),
                  {.device = device, .threads = 2, .context = 512, .max_sequences = 4, .max_batch_tokens = 128});
  Difference d;
  for (const nlohmann::json& prompt : golden(kind).at("prompts")) compare(prompt, *engine, kind, d);
  constexpr int64_t kAll[] = {315, 285, 414, 488, 316};
  EXPECT_EQ(d.tokens, kAll[static_cast<size_t>(kind)]) << "all of the golden file's";
  return d;
}

// A few prompts that are unlike each other: pictures first, last, adjacent, over chunks.
inline std::vector<std::vector<Part>> layouts() {
  return {{text(5), picture(0), text(6)},
          {picture(0), text(5)},
          {text(5), picture(2)},
          {text(3), picture(1), picture(2), text(4)},
          {text(60), picture(0), text(55), picture(2), text(1), picture(1), text(20)},
          {text(130), picture(0, 1), text(70)}};
}

inline EngineOptions six_sequences_on(Device device) {
  EngineOptions o = six_sequences();
  o.device = device;
  return o;
}

inline std::vector<TokenId> alone(const std::vector<Part>& parts, Device device = Device::kCpu,
                                  ImageKind kind = ImageKind::kHybrid) {
  const std::unique_ptr<Engine> engine = make_engine(image_model(device, kind), six_sequences_on(device));
  const Heard heard = hear_one(*engine, with_images(parts, 24, 0, kind));
  EXPECT_EQ(heard.finish, FinishReason::kLength) << heard.message();
  return heard.tokens;
}

// Alone, in company, in short chunks, swapped out, from the prefix cache and with drafts.
inline void expect_the_same_bits(Device device, ImageKind kind) {
  std::vector<std::vector<TokenId>> expected;
  for (const auto& parts : layouts()) expected.push_back(alone(parts, device, kind));
  EngineOptions crowded = six_sequences_on(device);
  EngineOptions chunks = six_sequences_on(device);
  chunks.max_batch_tokens = 64;
  EngineOptions swapped = six_sequences_on(device);
  swapped.kv_tokens = 480;
  swapped.swap_bytes = int64_t{4} << 20;
  EngineOptions cached = six_sequences_on(device);
  cached.prefix_cache = true;
  EngineOptions drafts = six_sequences_on(device);
  drafts.speculative.mode = Speculative::kLookup;
  for (const EngineOptions& o : {crowded, chunks, swapped, cached, drafts}) {
    const std::unique_ptr<Engine> engine = make_engine(image_model(device, kind), o);
    for (int turn = 0; turn < 2; ++turn) {
      std::vector<Arrival> script;
      for (size_t i = 0; i < layouts().size(); ++i)
        script.push_back({with_images(layouts()[i], 24, 0, kind), static_cast<int64_t>(3 * i)});
      const std::vector<Heard> heard = play(*engine, script);
      for (size_t i = 0; i < heard.size(); ++i)
        EXPECT_EQ(heard[i].tokens, expected[i]) << i << ": " << heard[i].message();
    }
  }
}

}  // namespace quire::test
