// When which pictures are encoded: work that is planned beside prompts. Internal to the engine.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "engine/encoder_batch.h"
#include "engine/encoder_cache.h"
#include "engine/plan.h"
#include "engine/sequence.h"

namespace quire {

// The stepping thread owns it.
//
// A prompt is computed up to the first picture whose rows are not there; a request that waits is admitted when the
// first one that it needs is. Who needs pictures is asked in order: those that run, then those that wait as they were
// looked at. Whoever comes first has his encoded first, and what he needs is not given up for those behind him. So the
// first one always goes on.
//
// Each step takes a few of the tower's blocks along. As many as its rows and layers leave room for: a row that passes
// one block counts as a token that passes one layer, and a step gives the tower half of what it has for prompts. So a
// stream of generated tokens waits no longer for somebody's picture than for somebody's prompt.
class Encoder {
 public:
  Encoder(const VisionTower* tower, const EnginePlan& plan, int64_t layers);

  // How far the prompt of `s` can be computed from `position` on: to the last place where a chunk may end up to which
  // all pictures are there, or to its end. No further than `position`: it waits for a picture.
  int64_t ready(const Sequence& s, int64_t position);
  // The sequence's pictures, if no chunk may end within one; null: it may, or there are none.
  const PromptImages* whole(const Sequence& s) const {
    return plan_.encoder.whole > 0 && !s.pictures.empty() ? s.request.images.get() : nullptr;
  }
  // Where the rows of the sequence's picture i begin, which are there.
  int64_t row_of(const Sequence& s, size_t i);

  // The next slice of what is under way; an empty one: nothing is. Rows are there for the step that takes it along.
  EncoderSlice advance();
  // Begins with the next pictures, if none are under way. Of a sequence the position that it goes on from.
  struct Need {
    const Sequence* sequence = nullptr;
    int64_t position = 0;
  };
  void choose(std::span<const Need> needs);
  bool busy() const { return batch_ != nullptr; }
  // Of a step's rows, those that a slice takes the place of.
  int32_t rows_taken(const EncoderSlice& slice) const;
  // Steps failed: what was computed cannot be relied on.
  void forget();

 private:
  // The last place before a picture where a chunk may end: on the grid of 64, or, where pictures are computed whole,
  // right before it.
  int64_t stop_before(const PromptImage& image) const {
    return plan_.encoder.whole > 0 ? image.position : image.position / kChunkTokens * kChunkTokens;
  }
  void begin(std::span<const PromptImage* const> images, std::span<const EncoderCache::Picture> pictures, int64_t row);

  const VisionTower* tower_;
  const EnginePlan& plan_;
  int64_t layers_;
  EncoderCache cache_;
  std::shared_ptr<const EncoderBatch> batch_;  // under way
  std::vector<Hash128> pending_;               // of it: their rows are not there yet
  int64_t next_block_ = 0;
};

}  // namespace quire
