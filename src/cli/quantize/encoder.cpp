#include "cli/quantize/encoder.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numeric>

namespace quire::cli {
namespace {

// Rows are reported, and interruptions noticed, after about so many elements.
constexpr int64_t kStripElems = int64_t{1} << 20;
constexpr int64_t kGrain = 16;  // rows that a thread takes at once
// Factors of NVFP4's tensor scale are compared on at most so many rows of each matrix.
constexpr int64_t kSampleRows = 16;

// What the search weighs errors with: mean squares of the inputs, raised a little. A text of finite length
// says little about columns that it hardly excited; they must not become free to be wrong.
std::vector<float> search_weights(std::span<const float> mean_squares) {
  const double mean =
      std::accumulate(mean_squares.begin(), mean_squares.end(), 0.0) / static_cast<double>(mean_squares.size());
  if (!(mean > 0)) return {};
  std::vector<float> out;
  for (const float m : mean_squares) out.push_back(static_cast<float>(m / mean + 0.1));
  return out;
}

}  // namespace

TensorEncoder::TensorEncoder(int threads, quant::Search search, const quant::Importance* importance)
    : pool_(threads), search_(search), importance_(importance), lanes_(static_cast<size_t>(threads)) {}

Status TensorEncoder::run(const Job& job, const Report& report) {
  const gguf::TensorInfo& t = *job.in;
  out_.resize(static_cast<size_t>(job.out_bytes()));
  errors_.resize(static_cast<size_t>(t.rows()));
  scales_.clear();
  stats_ = {};
  find_weights(job);
  if (job.type() == DType::kNVFP4) QUIRE_CHECKED(find_scales(job));
  const int64_t bytes = dtype_bytes(job.type(), t.dims[0]);
  const int64_t strip = std::max(kGrain, kStripElems / t.dims[0]);
  for (int64_t begin = 0; begin < t.rows(); begin += strip) {
    const int64_t end = std::min(begin + strip, t.rows());
    QUIRE_CHECKED(for_rows(job, begin, end, [&](int64_t r, Lane& lane) {
      const quant::EncodeOptions o = options(job, r / t.dims[1]);
      std::byte* to = out_.data() + r * bytes;
      quant::encode_row(job.type(), lane.row.data(), t.dims[0], o, to);
      lane.decoded.resize(lane.row.size());
      quant::decode_row(job.type(), to, t.dims[0], lane.decoded.data());
      for (float& x : lane.decoded) x *= o.tensor_scale;
      RowError& e = errors_[static_cast<size_t>(r)];
      e.error = quant::squared_error(lane.row.data(), lane.decoded.data(), t.dims[0], {});
      e.weighted_error = quant::squared_error(lane.row.data(), lane.decoded.data(), t.dims[0], o.importance);
      std::fill(lane.decoded.begin(), lane.decoded.end(), 0.0f);
      e.squares = quant::squared_error(lane.row.data(), lane.decoded.data(), t.dims[0], {});
      e.weighted_squares = quant::squared_error(lane.row.data(), lane.decoded.data(), t.dims[0], o.importance);
    }));
    if (!report((end - begin) * t.row_bytes())) return request_error("interrupted");
  }
  for (const RowError& e : errors_) {  // in the order of rows, whoever computed them
    stats_.squares += e.squares;
    stats_.error += e.error;
    stats_.weighted_squares += e.weighted_squares;
    stats_.weighted_error += e.weighted_error;
  }
  return {};
}

int64_t TensorEncoder::buffer_bytes() const {
  size_t n = out_.capacity() + scales_.capacity() * sizeof(float) + errors_.capacity() * sizeof(RowError);
  for (const Lane& l : lanes_) n += (l.row.capacity() + l.decoded.capacity()) * sizeof(float) + l.encoded.capacity();
  for (const auto& w : weights_) n += w.capacity() * sizeof(float);
  return static_cast<int64_t>(n);
}

void TensorEncoder::find_weights(const Job& job) {
  weights_.assign(static_cast<size_t>(job.matrices()), {});
  if (importance_ == nullptr) return;
  for (int64_t m = 0; m < job.matrices(); ++m) {
    const std::span<const float> found = importance_->find(job.in->name, m, job.in->dims[0]);
    if (!found.empty()) weights_[static_cast<size_t>(m)] = search_weights(found);
    if (weights_[static_cast<size_t>(m)].empty())
      ++stats_.unreached;
    else
      stats_.weighted = true;
  }
  if (!stats_.weighted) stats_.unreached = 0;
}

void TensorEncoder::read_row(const Job& job, int64_t row, std::vector<float>& out) const {
  const gguf::TensorInfo& t = *job.in;
  out.resize(static_cast<size_t>(t.dims[0]));
  quant::decode_row(t.dtype, t.data + row * t.row_bytes(), t.dims[0], out.data());
  if (job.factors.empty()) return;
  const float factor = job.factors[static_cast<size_t>(row / t.dims[1])];
  for (float& x : out) x *= factor;
}

quant::EncodeOptions TensorEncoder::options(const Job& job, int64_t matrix) const {
  const auto m = static_cast<size_t>(matrix);
  return {search_, weights_[m], job.type() == DType::kNVFP4 ? scales_[m] : 1.0f};
}

template <class Each>
Status TensorEncoder::for_rows(const Job& job, int64_t begin, int64_t end, Each&& each) {
  std::atomic<int64_t> bad{-1};
  pool_.parallel_for(end - begin, kGrain, [&](int64_t from, int64_t to, int thread) {
    Lane& lane = lanes_[static_cast<size_t>(thread)];
    for (int64_t r = begin + from; r < begin + to; ++r) {
      read_row(job, r, lane.row);
      if (!std::all_of(lane.row.begin(), lane.row.end(), [](float x) { return std::isfinite(x); })) {
        bad.store(r, std::memory_order_relaxed);
        return;
      }
      each(r, lane);
    }
  });
  if (bad.load() < 0) return {};
  return file_error("tensor {}: row {} has values that are not finite; the file is damaged, copy it again",
                    gguf::printable(job.in->name), bad.load());
}

// NVFP4's tensor scale of each matrix: that of its rows' largest magnitudes, refined if searching.
Status TensorEncoder::find_scales(const Job& job) {
  std::vector<float> largest(static_cast<size_t>(job.in->rows()));
  QUIRE_CHECKED(for_rows(job, 0, job.in->rows(), [&](int64_t r, Lane& lane) {
    float most = 0;
    for (const float x : lane.row) most = std::max(most, std::fabs(x));
    largest[static_cast<size_t>(r)] = most;
  }));
  const int64_t rows = job.in->dims[1];
  for (int64_t m = 0; m < job.matrices(); ++m) {
    QUIRE_TRY(const float scale, quant::nvfp4_tensor_scale(largest.data() + m * rows, rows));
    scales_.push_back(scale);
  }
  if (search_ == quant::Search::kBest) refine_scales(job);
  return {};
}

// Takes the factor of least error on a sample of rows, spread evenly over each matrix.
void TensorEncoder::refine_scales(const Job& job) {
  const std::span<const float> factors = quant::nvfp4_scale_factors();
  const int64_t cols = job.in->dims[0], rows = job.in->dims[1], samples = std::min(rows, kSampleRows);
  const auto n_factors = std::ssize(factors);
  std::vector<double> errors(static_cast<size_t>(job.matrices() * samples * n_factors));
  pool_.parallel_for(job.matrices() * samples, 1, [&](int64_t begin, int64_t end, int thread) {
    Lane& lane = lanes_[static_cast<size_t>(thread)];
    lane.encoded.resize(static_cast<size_t>(dtype_bytes(job.type(), cols)));
    lane.decoded.resize(static_cast<size_t>(cols));
    for (int64_t i = begin; i < end; ++i) {
      const int64_t m = i / samples, row = m * rows + i % samples * rows / samples;
      read_row(job, row, lane.row);
      quant::EncodeOptions o = options(job, m);
      const float base = o.tensor_scale;
      for (int64_t f = 0; f < n_factors; ++f) {
        o.tensor_scale = base * factors[static_cast<size_t>(f)];
        quant::encode_row(job.type(), lane.row.data(), cols, o, lane.encoded.data());
        quant::decode_row(job.type(), lane.encoded.data(), cols, lane.decoded.data());
        for (float& x : lane.decoded) x *= o.tensor_scale;
        errors[static_cast<size_t>(i * n_factors + f)] =
            quant::squared_error(lane.row.data(), lane.decoded.data(), cols, o.importance);
      }
    }
  });
  for (int64_t m = 0; m < job.matrices(); ++m) {
    double least = 0;
    int64_t best = 0;
    for (int64_t f = 0; f < n_factors; ++f) {
      double sum = 0;
      for (int64_t i = m * samples; i < (m + 1) * samples; ++i) sum += errors[static_cast<size_t>(i * n_factors + f)];
      if (f == 0 || sum < least) least = sum, best = f;
    }
    scales_[static_cast<size_t>(m)] *= factors[static_cast<size_t>(best)];
  }
}

}  // namespace quire::cli
