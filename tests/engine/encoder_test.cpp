// When pictures are encoded, where their rows lie, and where tokens stand.
#include "engine/encoder.h"

#include <gmock/gmock.h>

#include "engine/engine_rig.h"
#include "engine/picture_keys.h"
#include "support/image_model.h"

namespace quire::test {
namespace {

using testing::ElementsAre;
using testing::Optional;

Hash128 key(uint64_t n) {
  return {n, n};
}

bool nothing(const Hash128&) {
  return false;
}

TEST(EncoderCache, GivesPiecesAndTakesTheOldestBack) {
  EncoderCache cache(10);
  const EncoderCache::Picture one[] = {{key(1), 4}}, two[] = {{key(2), 4}}, three[] = {{key(3), 3}},
                              all[] = {{key(4), 10}};
  EXPECT_THAT(cache.add(one, nothing), Optional(0));
  EXPECT_THAT(cache.add(two, nothing), Optional(4));
  EXPECT_THAT(cache.find(key(1)), Optional(0));  // used since the other one
  EXPECT_THAT(cache.add(three, nothing), Optional(4));
  EXPECT_EQ(cache.find(key(2)), std::nullopt);
  EXPECT_EQ(cache.used(), 7);
  EXPECT_EQ(cache.add(all, [](const Hash128& k) { return k == key(3); }), std::nullopt);
  EXPECT_THAT(cache.find(key(3)), Optional(4));
  EXPECT_THAT(cache.add(all, nothing), Optional(0));
  EXPECT_EQ(cache.used(), 10);
}

TEST(EncoderCache, LaysPicturesOfABatchSideBySide) {
  EncoderCache cache(100);
  const EncoderCache::Picture batch[] = {{key(1), 10}, {key(2), 20}, {key(3), 5}};
  EXPECT_THAT(cache.add(batch, nothing), Optional(0));
  EXPECT_THAT(cache.find(key(2)), Optional(10));
  EXPECT_THAT(cache.find(key(3)), Optional(30));
  const EncoderCache::Picture large[] = {{key(5), 101}};
  EXPECT_EQ(cache.add(large, nothing), std::nullopt);
}

// In "Qwen2-VL" (arXiv:2409.12191) and its successors: what follows a picture goes on behind its longer side.
TEST(PromptImages, CoordinatesGoOnBehindTheLongerSide) {
  PromptImage wide = prompt_image(2, 5);     // 1 x 6 tokens
  PromptImage square = prompt_image(0, 13);  // 3 x 3
  const PromptImages images({wide, square});
  EXPECT_THAT(images.coordinates(4), ElementsAre(4, 4, 4));
  EXPECT_THAT(images.coordinates(5), ElementsAre(5, 5, 5));
  EXPECT_THAT(images.coordinates(10), ElementsAre(5, 5, 10));
  EXPECT_THAT(images.coordinates(11), ElementsAre(11, 11, 11));
  EXPECT_THAT(images.coordinates(13), ElementsAre(13, 13, 13));
  EXPECT_THAT(images.coordinates(17), ElementsAre(13, 14, 14));
  EXPECT_THAT(images.coordinates(21), ElementsAre(13, 15, 15));
  EXPECT_THAT(images.coordinates(22), ElementsAre(16, 16, 16));
  EXPECT_THAT(images.coordinates(1000), ElementsAre(994, 994, 994));
}

TEST(PictureKeys, NameChunksThatHavePictures) {
  const KeyedHash hash(1, 2);
  const PromptImages images({prompt_image(0, 60)});
  const std::vector<Hash128> of = pictures_of_chunks(hash, images, 200);
  ASSERT_EQ(of.size(), 3u);
  EXPECT_NE(of[0], Hash128{});
  EXPECT_NE(of[1], Hash128{});
  EXPECT_EQ(of[2], Hash128{});
  EXPECT_NE(of[0], of[1]);
  EXPECT_NE(pictures_of_chunks(hash, PromptImages({prompt_image(0, 60, 1)}), 200)[1], of[1]);
  EXPECT_NE(pictures_of_chunks(hash, PromptImages({prompt_image(0, 59)}), 200)[1], of[1]);
  EXPECT_TRUE(pictures_of_chunks(hash, PromptImages(), 200).empty());
  EXPECT_NE(picture_keys(hash, "a", images), picture_keys(hash, "b", images));
}

// A sequence that is not an engine's.
struct Asking {
  Sequence sequence;
  Asking(std::vector<PromptImage> images, int64_t prompt) {
    sequence.request.prompt = std::vector<TokenId>(static_cast<size_t>(prompt), kImagePad);
    sequence.request.images = std::make_shared<const PromptImages>(std::move(images));
    sequence.pictures = picture_keys(KeyedHash(1, 2), "", *sequence.request.images);
  }
};

class Encoders : public testing::Test {
 protected:
  // A tower of two blocks, beside a text model of four layers.
  Encoder encoder(int64_t patches, int64_t tokens, int32_t batch_tokens = 1024) {
    plan_.encoder = {.patches = patches, .tokens = tokens};
    plan_.max_batch_tokens = batch_tokens;
    return Encoder(image_model()->vision->tower.get(), plan_, 4);
  }
  EnginePlan plan_;
};

TEST_F(Encoders, PromptsAreReadyUpToTheFirstPictureThatIsMissing) {
  Encoder e = encoder(1024, 256);
  const Asking a({prompt_image(0, 70), prompt_image(1, 140)}, 200);
  EXPECT_EQ(e.ready(a.sequence, 0), 64);
  EXPECT_EQ(e.ready(a.sequence, 64), 64);
  EXPECT_EQ(e.ready(a.sequence, 80), 128);
  const Encoder::Need need{&a.sequence, 0};
  e.choose({&need, 1});
  EXPECT_TRUE(e.busy());
  EXPECT_EQ(e.ready(a.sequence, 0), 64);
  const EncoderSlice slice = e.advance();
  EXPECT_EQ(slice.batch->pictures.size(), 2u);
  EXPECT_EQ(slice.blocks.end, 2);
  EXPECT_FALSE(e.busy());
  EXPECT_EQ(e.ready(a.sequence, 0), 200);
  EXPECT_EQ(e.row_of(a.sequence, 0), 0);
  EXPECT_EQ(e.row_of(a.sequence, 1), 9);
  e.choose({&need, 1});
  EXPECT_FALSE(e.busy()) << "there is nothing to encode";
  e.forget();
  EXPECT_EQ(e.ready(a.sequence, 0), 64);
}

TEST_F(Encoders, WholePicturesLetPromptsAdvanceRightUpToThem) {
  Encoder e = encoder(1024, 256);
  plan_.encoder.whole = 9;
  const Asking a({prompt_image(0, 62), prompt_image(1, 71), prompt_image(0, 140, 1)}, 200), text({}, 100);
  EXPECT_EQ(e.ready(a.sequence, 0), 62);
  EXPECT_EQ(e.ready(a.sequence, 62), 62);
  EXPECT_EQ(e.ready(a.sequence, 64), 62) << "the rest of a picture that a cache has in part";
  EXPECT_EQ(e.ready(a.sequence, 80), 140);
  EXPECT_EQ(e.whole(a.sequence), a.sequence.request.images.get());
  EXPECT_EQ(e.whole(text.sequence), nullptr);
  plan_.encoder.whole = 0;
  EXPECT_EQ(e.whole(a.sequence), nullptr);
}

TEST_F(Encoders, SlicesHaveAsManyBlocksAsHalfAStepIsWorth) {
  Encoder e = encoder(1024, 256, 16);  // 8 rows through 4 layers; a picture has 36 patches
  const Asking a({prompt_image(0, 0)}, 20);
  const Encoder::Need need{&a.sequence, 0};
  e.choose({&need, 1});
  const EncoderSlice first = e.advance();
  EXPECT_EQ(first.blocks.begin, 0);
  EXPECT_EQ(first.blocks.end, 1);
  EXPECT_EQ(e.rows_taken(first), 9);
  EXPECT_EQ(e.ready(a.sequence, 0), 0);
  const EncoderSlice second = e.advance();
  EXPECT_EQ(second.blocks.begin, 1);
  EXPECT_EQ(second.blocks.end, 2);
  EXPECT_EQ(e.ready(a.sequence, 0), 20);
  EXPECT_EQ(e.advance().batch, nullptr);
}

TEST_F(Encoders, WhoComesFirstGoesOnWhereThereIsRoomForAFew) {
  Encoder e = encoder(36, 12);  // one picture of 9 tokens, or smaller ones
  const Asking a({prompt_image(0, 0, 0), prompt_image(0, 64, 1)}, 128), b({prompt_image(0, 0, 2)}, 64);
  const Encoder::Need needs[] = {{&a.sequence, 0}, {&b.sequence, 0}};
  e.choose(needs);
  EXPECT_EQ(e.advance().batch->pictures.size(), 1u);
  EXPECT_EQ(e.ready(a.sequence, 0), 64);
  EXPECT_EQ(e.ready(b.sequence, 0), 0);
  e.choose(needs);
  EXPECT_FALSE(e.busy()) << "the first one has what it needs next, and it stays until it is used";
  const Encoder::Need later[] = {{&a.sequence, 64}, {&b.sequence, 0}};
  e.choose(later);
  ASSERT_TRUE(e.busy());
  e.advance();
  EXPECT_EQ(e.ready(a.sequence, 64), 128);
}

}  // namespace
}  // namespace quire::test
