// Prompts with pictures: what transformers computes, and the same bits whatever else happens.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "convert/convert.h"
#include "engine/engine_rig.h"
#include "support/gguf_edit.h"
#include "support/image_model.h"

namespace quire::test {
namespace {

using nlohmann::json;

// Parts of a prompt: so many tokens of text, or a picture.
struct Part {
  int64_t text = 0;
  int image = -1, seed = 0;
};
Part text(int64_t n) {
  return {.text = n};
}
Part picture(int number, int seed = 0) {
  return {.image = number, .seed = seed};
}

Request with_images(const std::vector<Part>& parts, int64_t max_tokens, int32_t seed = 0) {
  std::vector<TokenId> ids;
  std::vector<PromptImage> images;
  for (const Part& p : parts) {
    if (p.image < 0) {
      const std::vector<TokenId> more = tokens(p.text, seed + static_cast<int32_t>(ids.size()));
      ids.insert(ids.end(), more.begin(), more.end());
      continue;
    }
    images.push_back(prompt_image(static_cast<size_t>(p.image), std::ssize(ids), p.seed));
    ids.insert(ids.end(), static_cast<size_t>(images.back().tokens()), kImagePad);
  }
  Request r = request_of(std::move(ids), max_tokens);
  r.images = std::make_shared<const PromptImages>(std::move(images));
  return r;
}

const json& golden() {
  static const json all = [] {
    std::ifstream in(QUIRE_SOURCE_DIR "/tests/data/golden/image-qwen35.json");
    return json::parse(in);
  }();
  return all;
}

Request golden_request(const json& prompt) {
  Request r = request_of(prompt.at("ids").get<std::vector<TokenId>>(), 1);
  std::vector<PromptImage> images;
  for (const json& image : prompt.at("images")) images.push_back(prompt_image(image[0], image[1]));
  r.images = std::make_shared<const PromptImages>(std::move(images));
  return r;
}

// What the engine says of a prompt's tokens and of the next one, beside what transformers says.
struct Difference {
  double most = 0, squares = 0;  // of the tokens' log-probabilities
  int64_t tokens = 0;
  double divergence = 0;  // behind the prompts, the largest
};
void compare(const json& prompt, Engine& engine, Difference& d) {
  Request r = golden_request(prompt);
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
Difference compare(Device device) {
  const std::unique_ptr<Engine> engine = make_engine(
      image_model(), {.device = device, .threads = 2, .context = 512, .max_sequences = 4, .max_batch_tokens = 128});
  Difference d;
  for (const json& prompt : golden().at("prompts")) compare(prompt, *engine, d);
  EXPECT_GT(d.tokens, 300);
  return d;
}

TEST(Images, ReferenceComputesWhatTransformersComputes) {
  const Difference d = compare(Device::kReference);
  EXPECT_LT(d.most, 1e-3);
  EXPECT_LT(d.divergence, 1e-6);
}

TEST(Images, CpuIsNoFurtherOffThanTransformersInBf16) {
  const Difference d = compare(Device::kCpu);
  EXPECT_LT(std::sqrt(d.squares / static_cast<double>(d.tokens)), golden().at("bf16_rms").get<double>());
}

// A few prompts that are unlike each other: pictures first, last, adjacent, over chunks.
std::vector<std::vector<Part>> layouts() {
  return {{text(5), picture(0), text(6)},
          {picture(0), text(5)},
          {text(5), picture(2)},
          {text(3), picture(1), picture(2), text(4)},
          {text(60), picture(0), text(55), picture(2), text(1), picture(1), text(20)},
          {text(130), picture(0, 1), text(70)}};
}

std::vector<TokenId> alone(const std::vector<Part>& parts) {
  const std::unique_ptr<Engine> engine = make_engine(image_model(), six_sequences());
  const Heard heard = hear_one(*engine, with_images(parts, 24));
  EXPECT_EQ(heard.finish, FinishReason::kLength) << heard.message();
  return heard.tokens;
}

TEST(Images, CompanyChunksAndPressureChangeNothing) {
  std::vector<std::vector<TokenId>> expected;
  for (const auto& parts : layouts()) expected.push_back(alone(parts));
  EngineOptions crowded = six_sequences();
  EngineOptions chunks = six_sequences();
  chunks.max_batch_tokens = 64;
  EngineOptions swapped = six_sequences();
  swapped.kv_tokens = 480;
  swapped.swap_bytes = int64_t{4} << 20;
  EngineOptions cached = six_sequences();
  cached.prefix_cache = true;
  EngineOptions drafts = six_sequences();
  drafts.speculative.mode = Speculative::kLookup;
  for (const EngineOptions& o : {crowded, chunks, swapped, cached, drafts}) {
    const std::unique_ptr<Engine> engine = make_engine(image_model(), o);
    for (int turn = 0; turn < 2; ++turn) {
      std::vector<Arrival> script;
      for (size_t i = 0; i < layouts().size(); ++i)
        script.push_back({with_images(layouts()[i], 24), static_cast<int64_t>(3 * i)});
      const std::vector<Heard> heard = play(*engine, script);
      for (size_t i = 0; i < heard.size(); ++i)
        EXPECT_EQ(heard[i].tokens, expected[i]) << i << ": " << heard[i].message();
    }
  }
}

TEST(Images, AnotherPictureIsAnotherPrompt) {
  EngineOptions o = six_sequences();
  o.prefix_cache = true;
  const std::unique_ptr<Engine> engine = make_engine(image_model(), o);
  const std::vector<Part> first = {text(60), picture(0), text(70)}, second = {text(60), picture(0, 1), text(70)};
  const Heard one = hear_one(*engine, with_images(first, 16));
  const Heard other = hear_one(*engine, with_images(second, 16));
  EXPECT_EQ(other.cached, 0);
  EXPECT_NE(other.tokens, one.tokens);
  const std::vector<TokenId> expected = alone(second);
  EXPECT_EQ(other.tokens, std::vector<TokenId>(expected.begin(), expected.begin() + 16));
  // The same tokens as a text are a third one.
  Request raw = with_images(first, 16);
  raw.images = nullptr;
  const Heard third = hear_one(*engine, std::move(raw));
  EXPECT_EQ(third.cached, 0);
  EXPECT_NE(third.tokens, one.tokens);
}

TEST(Images, AnotherQuestionGoesOnBehindThePicture) {
  EngineOptions o = six_sequences();
  o.prefix_cache = true;
  const std::unique_ptr<Engine> engine = make_engine(image_model(), o);
  const auto ask = [&](int32_t question) {
    Request r = with_images({text(60), picture(0), text(30)}, 8);
    std::vector<TokenId>& ids = r.prompt.edit();
    const std::vector<TokenId> words = tokens(30, question);
    std::copy(words.begin(), words.end(), ids.end() - 30);
    return hear_one(*engine, std::move(r));
  };
  const Heard a = ask(7), b = ask(8);
  EXPECT_EQ(a.cached, 0);
  EXPECT_EQ(b.cached, 64);
  EXPECT_NE(a.tokens, b.tokens);
}

TEST(Images, AFileKeepsWhatPicturesWere) {
  EngineOptions o = six_sequences();
  o.prefix_cache = true;
  const std::vector<Part> parts = {text(60), picture(0), text(70)}, other = {text(60), picture(0, 1), text(70)};
  const HfFolder folder;
  Heard before;
  {
    const std::unique_ptr<Engine> engine = make_engine(image_model(), o);
    before = hear_one(*engine, with_images(parts, 16));
    ASSERT_GT(engine->save_prefixes(folder.path("cache"), int64_t{1} << 30)->chunks, 0);
  }
  const std::unique_ptr<Engine> engine = make_engine(image_model(), o);
  ASSERT_TRUE(engine->load_prefixes(folder.path("cache")).ok());
  EXPECT_EQ(hear_one(*engine, with_images(other, 16)).cached, 0);
  const Heard after = hear_one(*engine, with_images(parts, 16));
  EXPECT_EQ(after.cached, 128);
  EXPECT_EQ(after.tokens, before.tokens);
}

// The same model as two files, of which the second one is found beside the first; with a block that drafts.
TEST(Images, FilesAndDraftsGiveTheSame) {
  const HfFolder folder;
  write_image_model(folder);
  const auto converted = convert::convert({.folder = folder.path(), .output = folder.path("plain.gguf")});
  ASSERT_TRUE(converted.ok()) << converted.error().message;
  edit_gguf(folder.path("plain.gguf"), folder.path("m.gguf"), with_mtp_block());
  const ModelPtr model = load_or_die(folder.path("m.gguf"));
  ASSERT_NE(model->vision, nullptr);
  EngineOptions o = six_sequences();
  o.speculative.mode = Speculative::kMtp;
  const std::unique_ptr<Engine> engine = make_engine(model, o);
  std::vector<Arrival> script;
  for (const auto& parts : layouts()) script.push_back({with_images(parts, 24)});
  const std::vector<Heard> heard = play(*engine, script);
  for (size_t i = 0; i < heard.size(); ++i) EXPECT_EQ(heard[i].tokens, alone(layouts()[i])) << i;
  EXPECT_GT(engine->stats().drafts, 0);
}

TEST(Images, TowersThatDoNotFitAreNamed) {
  const HfFolder folder, tower;
  write_image_model(folder);
  write_tower_folder(tiny_tower("vision-qwen3vl"), tower);
  const auto refusal = [&](const std::string& mmproj) {
    const auto loaded = load_model(folder.path(), {.mmproj = mmproj});
    return loaded.ok() ? std::string() : loaded.error().message;
  };
  EXPECT_NE(refusal(folder.path("none.gguf")).find("none.gguf"), std::string::npos);
  EXPECT_EQ(load_or_die(folder.path())->vision->token, kImagePad);
  EXPECT_EQ((*load_model(folder.path(), {.vision = false}))->vision, nullptr);
  EXPECT_EQ((*load_model(folder.path(), {.max_image_pixels = 100 * 100}))->vision->spec.max_pixels, 100 * 100);
}

TEST(Images, WhatDoesNotFitIsRefused) {
  const std::unique_ptr<Engine> engine = make_engine(image_model(), six_sequences());
  const auto refusal = [&](Request r) {
    const Result<RequestId> id = engine->submit(std::move(r), [](const TokenEvent&) {});
    return id.ok() ? std::string() : id.error().message;
  };
  Request moved = with_images({text(5), picture(0), text(6)}, 4);
  moved.prompt.edit()[6] = 40;
  EXPECT_EQ(refusal(std::move(moved)), "image 0: other tokens stand in its place");
  Request cut = with_images({text(5), picture(0)}, 4);
  cut.prompt.edit().pop_back();
  EXPECT_EQ(refusal(std::move(cut)), "image 0: its tokens lie outside of the prompt, or in another one");
  const std::unique_ptr<Engine> blind = make_engine(tiny("tiny-qwen35"), six_sequences());
  Request r = with_images({text(5), picture(0), text(6)}, 4);
  const Result<RequestId> id = blind->submit(std::move(r), [](const TokenEvent&) {});
  ASSERT_FALSE(id.ok());
  EXPECT_EQ(id.error().message, "this engine takes no images");
}

}  // namespace
}  // namespace quire::test
