// Weights in the order in which the integer core reads them fastest: copies, made once, of matrices in block
// formats. A vector of a copy holds four bytes of each of 16 rows, so that the sums of 16 rows end in the
// lanes of one register, and what follows in memory follows in time.
//
// 16 rows make a group, the last one filled up with zeros; group follows group, expert follows expert. Of a
// row, the blocks of a unit of columns become 32-bit words: the first field of all its blocks, then the
// second field of all, and so on. Word w of row r lies at [unit][w][r] of the group. Blocks past the last are
// zeros.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <memory>
#include <span>
#include <unordered_map>

#include "core/result.h"
#include "core/thread_pool.h"
#include "ops/op.h"
#include "quant/format_table.h"

namespace quire::gemm {

inline constexpr int64_t kGroupRows = 16;

struct RepackLayout {
  int columns = 0;     // of a unit; 0: not a type that the integer core takes
  int blocks = 0;      // of a unit
  int fields[4] = {};  // bytes of each, in the order of the block
  bool flip = false;   // the last field's bytes are signed, and unsigned (128 more) in the copy

  constexpr int block_bytes() const { return fields[0] + fields[1] + fields[2] + fields[3]; }
  constexpr int words() const { return (blocks * block_bytes() + 3) / 4; }  // of a row's unit
};

// No lambda: nvcc 13.0 warns of those that are templates and take nothing (445).
struct MakeRepackLayout {
  template <DType kType>
  constexpr RepackLayout operator()() const {
    constexpr const quant::FormatRow& f = *quant::find_format(kType);
    constexpr const DTypeInfo& block = constant_dtype_info(kType);
    RepackLayout layout = {f.unit_blocks * block.block_elems, f.unit_blocks, {}, f.signed_codes};
    std::copy(std::begin(f.fields), std::end(f.fields), layout.fields);
    if (f.fields[0] == 0) layout.fields[0] = block.block_bytes;
    return layout;
  }
};
inline constexpr auto kRepackLayouts = quant::table_by_type<RepackLayout, quant::has_integers>(MakeRepackLayout());
constexpr const RepackLayout& repack_layout(DType type) {
  return kRepackLayouts[type];
}

int64_t repacked_group_bytes(DType type, int64_t cols);

// Copies the group of rows [row, row + 16) of an expert, as far as they exist, to repacked_group_bytes at a
// multiple of 64.
void repack_group(const Weight& w, int64_t expert, int64_t row, std::byte* to);

// The group of `row`, a multiple of 16, in w's copy.
inline const std::byte* repacked_group(const Weight& w, int64_t expert, int64_t row, int64_t group_bytes) {
  return w.repacked + (expert * ((w.rows + kGroupRows - 1) / kGroupRows) + row / kGroupRows) * group_bytes;
}

}  // namespace quire::gemm

namespace quire {

// The copies of a model's matrices. Generated tokens are multiplied with them, prompts with the matrices in
// the file.
class RepackedWeights {
 public:
  // Copies those of `weights` that the integer core takes, each once, on all threads. Their data must stay as
  // it is. Fails if there is no memory.
  static Result<std::unique_ptr<RepackedWeights>> create(std::span<const Weight> weights, ThreadPool& pool);
  // Bytes of what create would make.
  static int64_t bytes_for(std::span<const Weight> weights);

  // w with its copy, if there is one.
  Weight find(Weight w) const;
  int64_t bytes() const { return static_cast<int64_t>(memory_.get_deleter().bytes); }

 private:
  struct Unmap {
    size_t bytes;
    void operator()(std::byte* p) const;
  };

  std::unordered_map<const std::byte*, Weight> copies_;  // by where a matrix begins
  std::unique_ptr<std::byte, Unmap> memory_{nullptr, Unmap{0}};
};

}  // namespace quire
