// The bytes of a tensor to write.
#pragma once

#include <cstddef>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "convert/plan.h"
#include "core/result.h"
#include "core/thread_pool.h"

namespace quire::convert {

// Rounds to float32 so that rounding the result once more, to bf16 or f16, is as rounding `x` itself:
// truncated, and the last bit set where anything was cut off ("round to odd").
float round_to_odd(double x);

// One row of NVFP4 (cols % 64 == 0) or MXFP4 (cols % 32 == 0) in the blocks of GGUF: only bits move. Scale
// signs are dropped. Groups of 16 or 32 columns are taken in the order of `groups` (empty: as they are).
void repack_nvfp4_row(const std::byte* codes, const std::byte* scales, int64_t cols, std::span<const int64_t> groups,
                      std::byte* out);
void repack_mxfp4_row(const std::byte* codes, const std::byte* scales, int64_t cols, std::span<const int64_t> groups,
                      std::byte* out);

// Makes tensors one after the other, on all threads; the buffer lives on.
class Producer {
 public:
  explicit Producer(int threads);

  // The payload of `t`, valid until the next call: of the checkpoint's own bytes where nothing changes. An
  // error if a value is too large for its new type. Tensors of the checkpoint that hold NaN or infinity are
  // added to `not_finite` by name; the payload is then good for nothing.
  Result<std::span<const std::byte>> run(const OutTensor& t, std::set<std::string>& not_finite);

 private:
  ThreadPool pool_;
  std::vector<std::byte> buffer_;
  struct Scratch {
    std::vector<double> row, ordered;
    std::vector<float> floats;
  };
  std::vector<Scratch> scratch_;  // one per thread

  enum class Row : uint8_t { kGood, kNotFinite, kTooLarge };
  Row make_row(const OutTensor& t, const Matrix& m, int64_t row, Scratch& s, std::byte* out) const;
};

}  // namespace quire::convert
