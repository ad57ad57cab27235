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

// The payload of `t` where the model folder, or the plan, has its bytes as they shall be; else null. Not aligned.
const std::byte* payload_in_place(const OutTensor& t);

// An error that names the tensors, unless there are none.
Status refuse_not_finite(const std::set<std::string>& tensors);

// Makes tensors one after the other, each on all threads.
class Producer {
 public:
  explicit Producer(int threads);

  // Writes the payload of `t`, t.bytes() of them, to `to`. An error if a value is too large for its new type. Tensors
  // of the model folder that hold NaN or infinity are added to `not_finite` by name; the payload is then good for
  // nothing.
  Status make(const OutTensor& t, std::byte* to, std::set<std::string>& not_finite);

  // The payload, valid until the next call: of the model folder's own bytes where nothing changes, which are looked
  // through for NaN and infinity all the same.
  Result<std::span<const std::byte>> run(const OutTensor& t, std::set<std::string>& not_finite);

 private:
  ThreadPool pool_;
  std::vector<std::byte> buffer_;  // of run()
  struct Scratch {
    std::vector<double> row, ordered;
    std::vector<float> floats;
  };
  std::vector<Scratch> scratch_;  // one per thread

  enum class Row : uint8_t { kGood, kNotFinite, kTooLarge };
  // Calls row(part, row of the output, thread) for all rows.
  template <class MakeRow>
  Status all_rows(const OutTensor& t, std::set<std::string>& not_finite, MakeRow&& make_row);
  Row make_row(const OutTensor& t, const Matrix& m, int64_t row, Scratch& s, std::byte* out) const;
};

}  // namespace quire::convert
