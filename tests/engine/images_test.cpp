// Prompts with pictures: what transformers computes, and the same bits whatever else happens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "convert/convert.h"
#include "engine/images_rig.h"
#include "support/gguf_edit.h"

namespace quire::test {
namespace {

using testing::HasSubstr;

class ImageModels : public testing::TestWithParam<ImageKind> {};

INSTANTIATE_TEST_SUITE_P(Tiny, ImageModels,
                         testing::Values(ImageKind::kHybrid, ImageKind::kDeepstack, ImageKind::kBothWays,
                                         ImageKind::kWindows, ImageKind::kPerLayer),
                         [](const auto& i) { return image_kind_name(i.param); });

TEST_P(ImageModels, ReferenceComputesWhatTransformersComputes) {
  const Difference d = compare(Device::kReference, GetParam());
  EXPECT_LT(d.most, 1e-3);
  EXPECT_LT(d.divergence, 1e-6);
}

TEST_P(ImageModels, CpuIsNoFurtherOffThanTransformersInBf16) {
  const Difference d = compare(Device::kCpu, GetParam());
  EXPECT_LT(std::sqrt(d.squares / static_cast<double>(d.tokens)), golden(GetParam()).at("bf16_rms").get<double>());
}

TEST_P(ImageModels, CompanyChunksAndPressureChangeNothing) {
  expect_the_same_bits(Device::kCpu, GetParam());
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
  // Both are there now.
  EXPECT_EQ(hear_one(*engine, with_images(first, 1)).cached, 128);
  EXPECT_EQ(hear_one(*engine, with_images(second, 1)).cached, 128);
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
  EXPECT_EQ((*load_model(folder.path(), {.pictures = {.max_pixels = 100 * 100}}))->vision->spec.max_pixels, 100 * 100);
}

TEST(Images, GemmasTowerMustFitWindowsAndTokenizer) {
  const HfFolder folder;
  write_image_model(folder, Device::kCpu, ImageKind::kBothWays);
  const std::string plain = folder.path("m.gguf"), changed = folder.path("changed.gguf"),
                    tower = folder.path("mmproj-m.gguf");
  const auto converted = convert::convert({.folder = folder.path(), .output = plain});
  ASSERT_TRUE(converted.ok()) << converted.error().message;
  const ModelPtr model = load_or_die(plain);
  ASSERT_NE(model->vision, nullptr) << "found beside the file";
  EXPECT_EQ(model->vision->token, kImagePad);
  const auto refusal = [&](const GgufEdit& edit) {
    edit_gguf(plain, changed, edit);
    const auto loaded = load_model(changed, {.mmproj = tower});
    return loaded.ok() ? std::string() : loaded.error().message;
  };
  const auto of_window = [](uint32_t window) {
    return GgufEdit{.drop = {"gemma3.attention.sliding_window"},
                    .metadata = [=](gguf::Writer& w) { w.add("gemma3.attention.sliding_window", window); }};
  };
  EXPECT_EQ(refusal(of_window(16)), "");
  EXPECT_THAT(refusal(of_window(15)),
              HasSubstr("pictures have 16 tokens, which is more than the model's window of 15"));
  EXPECT_THAT(refusal({.drop = {"tokenizer.ggml.tokens"},
                       .metadata =
                           [&](gguf::Writer& w) {
                             const gguf::File file = std::move(gguf::File::open(plain)).value();
                             const auto all = file.get_strings("tokenizer.ggml.tokens").value();
                             std::vector<std::string_view> tokens(all.begin(), all.end());
                             std::ranges::replace(tokens, std::string_view("<end_of_image>"),
                                                  std::string_view("<no_image>"));
                             w.add_strings("tokenizer.ggml.tokens", tokens);
                           }}),
              HasSubstr("the model's tokenizer has no <end_of_image>, which stands for pictures"));
}

// A prompt goes on from the middle of a picture, as the cache has it: what it has was computed beside all of it.
TEST(Images, PicturesThatAttendBothWaysGoOnFromACacheAnywhere) {
  EngineOptions o = six_sequences();
  o.prefix_cache = true;
  const std::unique_ptr<Engine> engine = make_engine(image_model(Device::kCpu, ImageKind::kBothWays), o);
  const auto ask = [&](Engine& of, int32_t question) {
    Request r = with_images({text(54), picture(0), text(30)}, 12, 0, ImageKind::kBothWays);  // at 54 to 69
    std::vector<TokenId>& ids = r.prompt.edit();
    const std::vector<TokenId> words = tokens(30, question);
    std::copy(words.begin(), words.end(), ids.end() - 30);
    return hear_one(of, std::move(r));
  };
  const Heard first = ask(*engine, 7), second = ask(*engine, 8);
  EXPECT_EQ(first.cached, 0);
  EXPECT_EQ(second.cached, 64);
  EXPECT_NE(first.tokens, second.tokens);
  const std::unique_ptr<Engine> cold = make_engine(image_model(Device::kCpu, ImageKind::kBothWays), six_sequences());
  EXPECT_EQ(second.tokens, ask(*cold, 8).tokens);
}

// A folder and the two files that it becomes give the same bits, and files of others say less.
TEST(Images, FilesOfGemma4GiveTheSame) {
  for (const ImageKind kind : {ImageKind::kWindows, ImageKind::kPerLayer}) {
    const HfFolder folder;
    write_image_model(folder, Device::kCpu, kind);
    const std::string plain = folder.path("m.gguf"), changed = folder.path("changed.gguf");
    const auto converted = convert::convert({.folder = folder.path(), .output = plain});
    ASSERT_TRUE(converted.ok()) << converted.error().message;
    const ModelPtr model = load_or_die(plain);
    ASSERT_NE(model->vision, nullptr) << "found beside the file";
    EXPECT_EQ(model->vision->token, kImagePad);
    EXPECT_EQ(model->vision->marker, "<|image|>");
    EXPECT_EQ(model->vision->written, "<|image><pad><image|>");
    EXPECT_EQ(model->vision->both_ways, kind == ImageKind::kWindows);
    EXPECT_EQ(model->vision->spec.max_tokens, 64);
    const std::unique_ptr<Engine> engine = make_engine(model, six_sequences());
    for (const std::vector<Part>& parts : {layouts()[0], layouts()[3]})
      EXPECT_EQ(hear_one(*engine, with_images(parts, 24, 0, kind)).tokens, alone(parts, Device::kCpu, kind));
    // As llama.cpp's converter writes it, which knows no such key, and none for the number of tokens.
    edit_gguf(folder.path("mmproj-m.gguf"), changed,
              {.drop = {"quire.vision.both_ways", "clip.vision.image_max_pixels", "clip.use_gelu"}});
    const auto with_less = load_model(plain, {.mmproj = changed});
    ASSERT_FALSE(with_less.ok());
    EXPECT_THAT(
        with_less.error().message,
        HasSubstr("pictures of 280 tokens have up to 840 patches in a row, but the tower has positions for 192"));
    const auto smaller = load_model(plain, {.mmproj = changed, .pictures = {.max_pixels = 60 * 48 * 48}});
    ASSERT_TRUE(smaller.ok()) << smaller.error().message;
    EXPECT_EQ((*smaller)->vision->both_ways, kind == ImageKind::kWindows);
    EXPECT_EQ((*smaller)->vision->spec.max_tokens, 60);
  }
}

// Adds so many tokens of text, or a picture, to a prompt.
void add_text(Request& r, int64_t count, int32_t seed) {
  const std::vector<TokenId> more = tokens(count, seed);
  std::vector<TokenId>& ids = r.prompt.edit();
  ids.insert(ids.end(), more.begin(), more.end());
}
void add_picture(Request& r, std::vector<PromptImage>& images, int64_t rows, int64_t columns, int seed) {
  images.push_back(made_up_image(rows, columns, std::ssize(r.prompt), seed));
  std::vector<TokenId>& ids = r.prompt.edit();
  ids.insert(ids.end(), static_cast<size_t>(images.back().tokens()), kImagePad);
}

// Scratch memory is set aside for the largest pictures. Long ones have more rows or columns than square ones, and many
// small ones more spans: all of them fill what there is room for.
TEST(Images, AnyShapesThatFillTheTowerHaveRoom) {
  const ModelPtr model = image_model_of(1024 * 1024);  // 4096 patches
  for (const Device device : {Device::kCpu, Device::kReference}) {
    const std::unique_ptr<Engine> engine = make_engine(
        model, {.device = device, .threads = 2, .context = 2048, .max_sequences = 1, .max_batch_tokens = 64});
    for (const auto& [rows, columns, count] :
         {std::tuple{2, 2048, 1}, std::tuple{2048, 2, 1}, std::tuple{16, 16, 16}, std::tuple{2, 128, 16}}) {
      if (device == Device::kReference && count == 1) continue;  // takes minutes
      Request r = request_of({}, 2);
      std::vector<PromptImage> images;
      for (int i = 0; i < count; ++i) add_picture(r, images, rows, columns, 100 * rows + i), add_text(r, 1, i);
      r.images = std::make_shared<const PromptImages>(std::move(images));
      const Heard heard = hear_one(*engine, std::move(r));
      EXPECT_EQ(heard.finish, FinishReason::kLength) << rows << " x " << columns << ": " << heard.message();
    }
  }
}

// More pictures than there is room for, of several who are in each other's way.
TEST(Images, PicturesTakeTurns) {
  const ModelPtr model = image_model_of(256 * 256);  // 64 tokens at most, and room for 256
  const auto request = [](int i) {
    Request r = request_of({}, 6);
    std::vector<PromptImage> images;
    add_text(r, 5 + 37 * (i % 3), i);
    for (int k = 0; k < 3 + i % 4; ++k) {
      add_picture(r, images, 16, (i + k) % 3 == 0 ? 8 : 16, 10 * i + k);
      add_text(r, 1 + (i * 29 + k * 53) % 90, i + k);
    }
    r.images = std::make_shared<const PromptImages>(std::move(images));
    return r;
  };
  const EngineOptions o{.threads = 2, .context = 1024, .max_sequences = 6, .max_batch_tokens = 128};
  std::vector<Arrival> script;
  std::vector<std::vector<TokenId>> expected;
  for (int i = 0; i < 16; ++i) {
    script.push_back({request(i), 2 * i});
    expected.push_back(hear_one(*make_engine(model, o), request(i)).tokens);
  }
  const std::unique_ptr<Engine> engine = make_engine(model, o);
  const std::vector<Heard> heard = play(*engine, script);
  for (size_t i = 0; i < heard.size(); ++i) EXPECT_EQ(heard[i].tokens, expected[i]) << i << ": " << heard[i].message();
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
