// Where recurrent states of a prompt are saved: only there can a later prompt go on from it. Internal to the engine.
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace quire {

// Multiples of 64, all of them before the prompt's last token:
// - the last one that is `tail` tokens or more before the end: where the next turn of a conversation comes by,
// - every 1024 tokens up to 8192, from there on every 4096: where a prompt that differs late goes on,
// - where other prompts leave this one, and where the request says.
class Checkpoints {
 public:
  Checkpoints() = default;
  Checkpoints(int64_t prompt_tokens, int64_t tail, std::span<const int64_t> asked);

  // One more; of those, only a few are kept. Whether `next` will come by it.
  bool add(int64_t at);
  // The first one after `position`, or 0.
  int64_t next(int64_t position) const;
  bool contains(int64_t position) const { return position > 0 && next(position - 1) == position; }

 private:
  static constexpr size_t kMostExtra = 12;
  int64_t last_ = 0, end_ = 0;
  std::array<int64_t, kMostExtra> extra_{};
  size_t extras_ = 0;
};

}  // namespace quire
