// What tests of vision towers share: a small tower, opened from a folder, and what it computes.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "convert/open.h"
#include "support/tiny_towers.h"
#include "vision/tower.h"

namespace quire::test {

struct TowerResult {
  std::vector<float> rows, deepstack;
  friend bool operator==(const TowerResult&, const TowerResult&) = default;
};

// The images [first, first + count) of a tower, or all.
struct TowerInput {
  std::vector<ImageGrid> grids;
  std::vector<float> patches;
  std::vector<uint8_t> bytes = {};  // in their place, if there are any

  explicit TowerInput(const TinyTower& t) : TowerInput(t, 0, t.grids.size()) {}
  TowerInput(const TinyTower& t, size_t first, size_t count) {
    const std::vector<float> all = t.patches();
    int64_t begin = 0;
    for (size_t i = 0; i < first; ++i) begin += t.grids[i].patches();
    int64_t end = begin;
    for (size_t i = first; i < first + count; ++i) {
      grids.push_back(t.grids[i]);
      end += t.grids[i].patches();
    }
    patches.assign(all.begin() + begin * t.patch_width(), all.begin() + end * t.patch_width());
  }
};

inline TowerResult run_tower(const VisionTower& tower, const TowerInput& in, Machine machine, int threads = 2) {
  ThreadPool pool(threads);
  Workspace workspace;
  const OpContext ctx{pool, workspace, machine};
  const VisionConfig& c = tower.config();
  Result<VisionBatch> batch = VisionBatch::make(c, in.grids);
  EXPECT_TRUE(batch.ok()) << batch.error().message;
  const int64_t tokens = batch->tokens(), levels = std::ssize(c.deepstack);
  TowerResult r;
  r.rows.assign(static_cast<size_t>(tokens * c.out_width), NAN);
  r.deepstack.assign(static_cast<size_t>(levels * tokens * c.out_width), NAN);
  VisionOutput out{make_tensor(r.rows.data(), {tokens, c.out_width}), {}};
  if (levels > 0) out.deepstack = make_tensor(r.deepstack.data(), {levels, tokens, c.out_width});
  const Tensor numbers = make_tensor(in.patches.data(), {batch->patches(), c.patch_width()});
  auto* const bytes = const_cast<uint8_t*>(in.bytes.data());
  const Tensor patches =
      in.bytes.empty() ? numbers : make_tensor(bytes, DType::kI8, {batch->patches(), c.patch_bytes()});
  tower.forward(ctx, patches, batch->arrays(), out);
  EXPECT_LE(workspace.high_water(), tower.scratch_bytes(machine, pool, *batch, patches.dtype));
  return r;
}

inline Machine cpu_machine() {
  return {.device = Device::kCpu};
}
inline Machine reference_machine() {
  return {.device = Device::kReference};
}

// A tower in a folder of the temporary directory, as it is opened without a file.
class TowerFolder {
 public:
  explicit TowerFolder(const TinyTower& t, DType type = DType::kBF16) : tiny(t) { write_tower_folder(t, folder, type); }

  const TinyTower tiny;
  HfFolder folder;
};

// An open file and its tower.
struct OpenTower {
  explicit OpenTower(Result<std::optional<gguf::File>> opened) : OpenTower(flat(std::move(opened))) {}
  explicit OpenTower(Result<gguf::File> opened) {
    if (!opened.ok()) {
      error = opened.error().message;
      return;
    }
    file = std::make_unique<gguf::File>(std::move(opened).value());
    Result<std::unique_ptr<const VisionTower>> loaded = VisionTower::load(*file);
    if (loaded.ok())
      tower = std::move(loaded).value();
    else
      error = loaded.error().message;
  }
  const VisionTower& operator*() const { return *tower; }

  std::unique_ptr<gguf::File> file;
  std::unique_ptr<const VisionTower> tower;
  std::string error;

 private:
  static Result<gguf::File> flat(Result<std::optional<gguf::File>> opened) {
    if (!opened.ok()) return opened.take_error();
    if (!opened->has_value()) return file_error("no tower");
    return std::move(**opened);
  }
};

}  // namespace quire::test
