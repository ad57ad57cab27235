// Encodes tensors on all threads, one at a time. The bytes do not depend on the number of threads.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "cli/quantize/plan.h"
#include "core/thread_pool.h"
#include "quant/format.h"

namespace quire::cli {

// Sums over all elements of a tensor.
struct EncodeStats {
  double squares = 0, error = 0;                    // of x^2 and (x - decoded)^2
  double weighted_squares = 0, weighted_error = 0;  // the same times the importance of the column
  int64_t unreached = 0;                            // matrices (experts) of unknown importance among known ones
  bool weighted = false;                            // the importance of some matrix was known
};

class TensorEncoder {
 public:
  // Told of bytes of the input that are done, now and then; false: stop.
  using Report = std::function<bool(int64_t bytes)>;

  // `importance` may be null.
  TensorEncoder(int threads, quant::Search search, const quant::Importance* importance);

  // Fills out(), scales() if the job has any, and stats(). An error if a value is NaN or infinite, or if the
  // report said to stop.
  Status run(const Job& job, const Report& report);

  std::span<const std::byte> out() const { return out_; }
  std::span<const float> scales() const { return scales_; }
  const EncodeStats& stats() const { return stats_; }
  // Memory of all buffers, now: the largest tensor so far as encoded, and a few rows for every thread.
  int64_t buffer_bytes() const;

 private:
  struct Lane {  // of one thread
    std::vector<float> row, decoded;
    std::vector<std::byte> encoded;
  };
  struct RowError {
    double squares, error, weighted_squares, weighted_error;
  };

  void find_weights(const Job& job);
  Status find_scales(const Job& job);
  void refine_scales(const Job& job);
  void read_row(const Job& job, int64_t row, std::vector<float>& out) const;
  quant::EncodeOptions options(const Job& job, int64_t matrix) const;
  // Calls each(row, lane) for the rows [begin, end), on all threads, with the row decoded. An error if a
  // value is not finite.
  template <class Each>
  Status for_rows(const Job& job, int64_t begin, int64_t end, Each&& each);

  ThreadPool pool_;
  quant::Search search_;
  const quant::Importance* importance_;
  std::vector<Lane> lanes_;
  std::vector<std::byte> out_;
  std::vector<float> scales_;
  std::vector<std::vector<float>> weights_;  // per matrix; empty: all columns count alike
  std::vector<RowError> errors_;             // per row
  EncodeStats stats_;
};

}  // namespace quire::cli
