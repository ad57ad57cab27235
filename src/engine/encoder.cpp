#include "engine/encoder.h"

#include <algorithm>

namespace quire {
namespace {

bool contains(std::span<const Hash128> keys, const Hash128& key) {
  return std::ranges::find(keys, key) != keys.end();
}

}  // namespace

Encoder::Encoder(const VisionTower* tower, const EnginePlan& plan, int64_t layers)
    : tower_(tower), plan_(plan), layers_(layers), cache_(plan.encoder.tokens) {}

int64_t Encoder::ready(const Sequence& s, int64_t position) {
  const int64_t end = s.prompt_tokens();
  if (s.pictures.empty() || position >= end) return end;
  const PromptImages& images = *s.request.images;
  for (size_t i = images.at(position); i < images.size(); ++i) {
    const Hash128& key = s.pictures[i];
    if (cache_.find(key) && !contains(pending_, key)) continue;
    return stop_before(images[i]);
  }
  return end;
}

int64_t Encoder::row_of(const Sequence& s, size_t i) {
  const std::optional<int64_t> row = cache_.find(s.pictures[i]);
  QUIRE_CHECK(row, "sequence {}: picture {} is computed, and its rows are not there", s.id.v, i);
  return *row;
}

int32_t Encoder::rows_taken(const EncoderSlice& slice) const {
  if (slice.batch == nullptr) return 0;
  const int64_t work = slice.batch->batch.patches() * (slice.blocks.end - slice.blocks.begin);
  return static_cast<int32_t>(std::min<int64_t>((work + layers_ - 1) / layers_, plan_.max_batch_tokens));
}

EncoderSlice Encoder::advance() {
  if (batch_ == nullptr) return {};
  const int64_t blocks = tower_->config().blocks, patches = batch_->batch.patches();
  const int64_t count = std::max<int64_t>(1, int64_t{plan_.max_batch_tokens} / 2 * layers_ / patches);
  EncoderSlice slice{batch_, {next_block_, std::min(blocks, next_block_ + count)}};
  next_block_ = slice.blocks.end;
  if (next_block_ == blocks) {
    batch_ = nullptr;
    pending_.clear();
  }
  return slice;
}

void Encoder::choose(std::span<const Need> needs) {
  if (batch_ != nullptr) return;
  std::vector<Hash128> kept, beside;  // what is needed by then, and of that, in the chunk that begins the first picture
  std::vector<const PromptImage*> images;
  std::vector<EncoderCache::Picture> pictures;
  int64_t patches = 0, wanted = 0;
  for (const Need& need : needs) {
    const Sequence& s = *need.sequence;
    if (s.pictures.empty()) continue;
    const PromptImages& all = *s.request.images;
    for (size_t i = all.at(need.position); i < all.size() && wanted < cache_.rows(); ++i) {
      const PromptImage& image = all[i];
      if (contains(kept, s.pictures[i])) continue;
      wanted += image.tokens();
      kept.push_back(s.pictures[i]);
      if (cache_.find(s.pictures[i], false)) continue;
      const bool fits = wanted <= cache_.rows() && patches + image.patches->count() <= plan_.encoder.patches &&
                        images.size() < EncoderBatch::kMostPictures;
      if (!fits) break;
      for (size_t j = all.at(stop_before(image)); images.empty() && j < i; ++j) beside.push_back(s.pictures[j]);
      patches += image.patches->count();
      images.push_back(&image);
      pictures.push_back({s.pictures[i], image.tokens()});
    }
  }
  if (images.empty()) return;
  std::optional<int64_t> row = cache_.add(pictures, [&](const Hash128& key) { return contains(kept, key); });
  if (!row) {
    // Pictures that are needed later lie in between: the first one alone, beside those of its own chunk, has room.
    images.erase(images.begin() + 1, images.end());
    pictures.erase(pictures.begin() + 1, pictures.end());
    row = cache_.add(pictures, [&](const Hash128& key) { return contains(beside, key); });
  }
  if (row) begin(images, pictures, *row);
}

void Encoder::begin(std::span<const PromptImage* const> images, std::span<const EncoderCache::Picture> pictures,
                    int64_t row) {
  auto batch = std::make_shared<EncoderBatch>();
  std::vector<ImageGrid> grids;
  for (const PromptImage* const image : images) {
    batch->pictures.push_back(image->patches);
    grids.push_back({1, image->patches->plan.rows, image->patches->plan.columns});
  }
  Result<VisionBatch> made = VisionBatch::make(tower_->config(), grids);
  QUIRE_CHECK(made.ok(), "{}", made.error().message);  // requests were checked
  batch->batch = std::move(made).value();
  batch->first_row = row;
  batch_ = std::move(batch);
  next_block_ = 0;
  pending_.clear();
  for (const EncoderCache::Picture& p : pictures) pending_.push_back(p.key);
}

void Encoder::forget() {
  cache_ = EncoderCache(cache_.rows());
  batch_ = nullptr;
  pending_.clear();
}

}  // namespace quire
