// Decoded pictures: as many of them as there is memory for, those of requests that wait among them.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>

#include "engine/prompt_image.h"
#include "server/picture_prompt.h"
#include "server/protocol/body_budget.h"

namespace quire::server {

// SHA-256 of the file, of the size that it is brought to, and of the part that is shown, if that is not all.
ImageDigest digest_of(const PlacedPicture& picture);

// Any thread. What a request has of it stays until the request lets go of it. What was used last is kept beyond that,
// so that a conversation's pictures are not decoded anew with each turn; it makes room for what requests need.
class PictureStore {
 public:
  // `max_bytes`: of all decoded pictures, and of what is decoded at the moment. A quarter is kept for later requests.
  PictureStore(image::ImageSpec spec, image::ImageLimits limits, size_t max_bytes);

  // Of a prompt, in its order; null where there are none. Each picture is decoded once, wherever and how often it
  // stands. `gone`: whether nobody waits any more. `found`, if not null: how many were there. Errors: 400 a file that
  // is damaged, or more pictures than are ever decoded at once; 503 no room now.
  ApiResult<std::shared_ptr<const PromptImages>> decode(std::span<const PlacedPicture> pictures,
                                                        const std::function<bool()>& gone = {},
                                                        size_t* found = nullptr);

  size_t held_bytes() const { return budget_->held(); }
  size_t max_bytes() const { return budget_->limit(); }

 private:
  using PatchesPtr = std::shared_ptr<const image::Patches>;
  struct Entry {
    std::weak_ptr<const image::Patches> used;
    PatchesPtr kept;  // null: only those who use it keep it
    size_t bytes = 0;
    uint64_t turn = 0;  // when it was used last, as a number that grows
  };

  ApiResult<PatchesPtr> decoded(const ImageDigest& digest, const PlacedPicture& picture, size_t* found);
  PatchesPtr find(const ImageDigest& digest);
  void keep(const ImageDigest& digest, const PatchesPtr& patches, size_t bytes);
  bool make_room(BodyShare& share, size_t bytes);
  bool forget_oldest();

  const image::ImageSpec spec_;
  const image::ImageLimits limits_;
  const std::shared_ptr<BodyBudget> budget_;

  std::mutex mutex_;
  std::map<ImageDigest, Entry> entries_;
  size_t kept_bytes_ = 0;
  uint64_t turns_ = 0;
};

}  // namespace quire::server
