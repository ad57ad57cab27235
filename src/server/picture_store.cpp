#include "server/picture_store.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <set>

namespace quire::server {
namespace {

// What decoding takes of memory beside its result, for each pixel of the file: three bytes, and about as much again
// while it runs.
constexpr size_t kWorkBytes = 8;

size_t patch_bytes(const image::ImagePlan& plan, const image::ImageSpec& spec) {
  return static_cast<size_t>(plan.rows * plan.columns * spec.bytes_per_patch());
}

struct Held {
  image::Patches patches;
  BodyShare share;
};

ApiError no_room() {
  return {.status = 503,
          .message = "no memory for more pictures: those of other requests take all that there is for them",
          .code = "overloaded",
          .retry_after = 2};
}

}  // namespace

ImageDigest digest_of(const PlacedPicture& picture) {
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(), EVP_MD_CTX_free);
  const image::Crop& crop = picture.crop;
  std::vector<int64_t> numbers = {picture.plan.width, picture.plan.height};
  if (!crop.whole()) numbers.insert(numbers.end(), {crop.x, crop.y, crop.width, crop.height});
  const std::vector<uint8_t>& bytes = picture.file->bytes;
  ImageDigest digest{};
  const bool done = context != nullptr && EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1 &&
                    EVP_DigestUpdate(context.get(), numbers.data(), numbers.size() * sizeof(int64_t)) == 1 &&
                    EVP_DigestUpdate(context.get(), bytes.data(), bytes.size()) == 1 &&
                    EVP_DigestFinal_ex(context.get(), reinterpret_cast<unsigned char*>(digest.data()), nullptr) == 1;
  if (!done) throw std::bad_alloc();  // the only way for it to fail
  return digest;
}

PictureStore::PictureStore(image::ImageSpec spec, image::ImageLimits limits, size_t max_bytes)
    : spec_(spec), limits_(limits), budget_(std::make_shared<BodyBudget>(max_bytes)) {}

ApiResult<std::shared_ptr<const PromptImages>> PictureStore::decode(std::span<const PlacedPicture> pictures,
                                                                    const std::function<bool()>& gone, size_t* found) {
  if (pictures.empty()) return std::shared_ptr<const PromptImages>();
  std::vector<PromptImage> all;
  std::set<ImageDigest> known;
  size_t bytes = 0;
  for (const PlacedPicture& p : pictures) {
    const auto merge = spec_.merge;
    all.push_back({.position = p.position,
                   .rows = static_cast<int32_t>(p.plan.rows / merge),
                   .columns = static_cast<int32_t>(p.plan.columns / merge),
                   .digest = digest_of(p),
                   .patches = nullptr});
    if (known.insert(all.back().digest).second) bytes += patch_bytes(p.plan, spec_);
  }
  if (bytes > max_bytes())
    return bad_field("messages", "invalid_value",
                     "the request's pictures take {} bytes when they are decoded; at most {} are there for pictures "
                     "(limit max_image_memory)",
                     bytes, max_bytes());
  for (size_t i = 0; i < all.size(); ++i) {
    if (gone && gone()) return ApiError{503, "nobody waits for the answer", "", ""};
    QUIRE_TRY(all[i].patches, decoded(all[i].digest, pictures[i], found));
  }
  return std::make_shared<const PromptImages>(std::move(all));
}

ApiResult<PictureStore::PatchesPtr> PictureStore::decoded(const ImageDigest& digest, const PlacedPicture& picture,
                                                          size_t* found) {
  if (PatchesPtr known = find(digest)) {
    if (found != nullptr) ++*found;
    return known;
  }
  const image::Bytes file = std::as_bytes(std::span(picture.file->bytes));
  QUIRE_TRY(const image::ImageHeader header, image::read_header(file, limits_));
  const size_t bytes = patch_bytes(picture.plan, spec_);
  BodyShare share(budget_), work(budget_);
  const auto pixels = static_cast<size_t>(header.width * header.height);
  // A single picture whose decoding takes more than all is decoded where there is nothing else.
  const size_t work_bytes = std::min(pixels * kWorkBytes, max_bytes() > bytes ? max_bytes() - bytes : 0);
  if (!make_room(share, bytes) || !make_room(work, work_bytes)) return no_room();
  const auto about = [&](const Error& error) {
    ApiError e = to_api_error(error);
    if (e.status != 400) return e;
    return bad_field(picture.file->where, "invalid_image", "'{}': {}", picture.file->where, e.message);
  };
  const Result<image::Pixels> decoded = image::decode(file, limits_);
  if (!decoded.ok()) return about(decoded.error());
  Result<image::Patches> patches = image::prepare(*decoded, spec_, picture.crop);
  if (!patches.ok()) return about(patches.error());
  const std::shared_ptr<Held> held(new Held{std::move(*patches), std::move(share)});
  PatchesPtr result(held, &held->patches);
  keep(digest, result, bytes);
  return result;
}

PictureStore::PatchesPtr PictureStore::find(const ImageDigest& digest) {
  const std::lock_guard lock(mutex_);
  const auto at = entries_.find(digest);
  if (at == entries_.end()) return nullptr;
  at->second.turn = ++turns_;
  return at->second.used.lock();
}

// The memory of what is forgotten here is given back when nobody uses it: outside the lock, or by whoever does.
void PictureStore::keep(const ImageDigest& digest, const PatchesPtr& patches, size_t bytes) {
  {
    const std::lock_guard lock(mutex_);
    std::erase_if(entries_, [](const auto& e) { return e.second.used.expired(); });
    Entry& entry = entries_[digest];
    if (entry.kept != nullptr) kept_bytes_ -= entry.bytes;
    entry = {.used = patches, .kept = patches, .bytes = bytes, .turn = ++turns_};
    kept_bytes_ += bytes;
  }
  for (;;) {
    {
      const std::lock_guard lock(mutex_);
      if (kept_bytes_ <= max_bytes() / 4) return;
    }
    if (!forget_oldest()) return;
  }
}

bool PictureStore::forget_oldest() {
  PatchesPtr forgotten;
  const std::lock_guard lock(mutex_);
  auto oldest = entries_.end();
  for (auto e = entries_.begin(); e != entries_.end(); ++e)
    if (e->second.kept != nullptr && (oldest == entries_.end() || e->second.turn < oldest->second.turn)) oldest = e;
  if (oldest == entries_.end()) return false;
  kept_bytes_ -= oldest->second.bytes;
  forgotten = std::move(oldest->second.kept);
  return true;
}

bool PictureStore::make_room(BodyShare& share, size_t bytes) {
  while (!share.grow(bytes))
    if (!forget_oldest()) return false;
  return true;
}

}  // namespace quire::server
