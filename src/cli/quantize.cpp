// quire quantize: re-encodes the matrices of a model, one tensor at a time.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <unordered_set>

#include "cli/command.h"
#include "cli/display.h"
#include "cli/encoding.h"
#include "core/cpu.h"
#include "core/progress.h"
#include "core/thread_pool.h"
#include "gguf/reader.h"
#include "gguf/writer.h"
#include "quant/format.h"

namespace quire::cli {
namespace {

struct QuantizeOptions {
  std::string input, output, type, head_type;
  int threads = 0;
};

// The new type of each tensor.
struct Types {
  std::optional<DType> projection, ffn, head;  // nothing: as in the input

  DType of(const gguf::TensorInfo& t) const {
    std::optional<DType> wanted;
    switch (tensor_role(t.name, t.n_dims)) {
      case TensorRole::kKept:
        break;
      case TensorRole::kHead:
        wanted = head;
        break;
      case TensorRole::kFfn:
        wanted = ffn;
        break;
      case TensorRole::kProjection:
        wanted = projection;
        break;
    }
    if (!wanted || t.bytes == 0 || t.dims[0] % dtype_info(*wanted).block_elems != 0) return t.dtype;
    return *wanted;
  }
};

// NVFP4 keeps to the feed-forward matrices, where most of the bytes are: four bits cost too much elsewhere.
Result<Types> choose_types(const QuantizeOptions& o) {
  Types types;
  QUIRE_TRY(const DType main, parse_encodable(o.type));
  types.ffn = main;
  if (main != DType::kNVFP4) types.projection = types.head = main;
  if (!o.head_type.empty()) {
    QUIRE_TRY(types.head, parse_encodable(o.head_type));
    if (types.head == DType::kNVFP4)
      return request_error("--head-type nvfp4 is not supported: choose q8_0, or a 16-bit type");
  }
  return types;
}

// One tensor of the input and what becomes of it.
struct Job {
  const gguf::TensorInfo* in = nullptr;
  DType type = DType::kF32;
  std::vector<float> factors;  // of the input's "<stem>.scale", to be multiplied in; empty: none

  bool encoded() const { return type != in->dtype; }
  int64_t matrices() const { return in->dims[2] * in->dims[3]; }
  int64_t out_bytes() const { return encoded() ? dtype_bytes(type, in->elems()) : in->bytes; }
  std::string scale_name() const { return fmt::format("{}.scale", tensor_stem(in->name)); }
};

Result<std::vector<float>> read_factors(const gguf::File& f, const Job& job) {
  const gguf::TensorInfo* scale = f.find_tensor(job.scale_name());
  if (scale == nullptr) return std::vector<float>{};
  if (scale->dtype != DType::kF32 || (scale->elems() != 1 && scale->elems() != job.matrices()))
    return file_error("tensor {}: {} of type {} does not scale {} matrices", gguf::printable(scale->name),
                      gguf::shape_text(*scale), dtype_name(scale->dtype), job.matrices());
  std::vector<float> factors(static_cast<size_t>(job.matrices()));
  for (size_t i = 0; i < factors.size(); ++i)
    std::memcpy(&factors[i], scale->data + (scale->elems() == 1 ? 0 : i * sizeof(float)), sizeof(float));
  return factors;
}

Result<std::vector<Job>> plan(const gguf::File& f, const Types& types) {
  std::vector<Job> jobs;
  std::unordered_set<std::string> absorbed;  // scales that the new encoding takes in
  for (const gguf::TensorInfo& t : f.tensors()) {
    Job job{&t, types.of(t), {}};
    if (job.encoded()) {
      if (!quant::can_decode(t.dtype))
        return file_error("tensor {}: type {} cannot be decoded yet; start from a bf16 or f16 file",
                          gguf::printable(t.name), dtype_name(t.dtype));
      QUIRE_TRY(job.factors, read_factors(f, job));
      absorbed.insert(job.scale_name());
      absorbed.insert(fmt::format("{}.input_scale", tensor_stem(t.name)));
    }
    jobs.push_back(std::move(job));
  }
  std::erase_if(jobs, [&](const Job& j) { return absorbed.contains(std::string(j.in->name)); });
  return jobs;
}

// Encodes tensors on all threads. Buffers live on from one tensor to the next.
class Encoder {
 public:
  explicit Encoder(int threads) : pool_(threads), rows_(static_cast<size_t>(threads)) {}

  // Fills out() and, for NVFP4, scales(). An error if a value is NaN or infinite.
  Status run(const Job& job) {
    out_.resize(static_cast<size_t>(job.out_bytes()));
    scales_.clear();
    if (job.type == DType::kNVFP4) QUIRE_CHECKED(find_scales(job));
    std::byte* out = out_.data();
    const int64_t bytes = dtype_bytes(job.type, job.in->dims[0]);
    return for_rows(job, [&](int64_t r, const std::vector<float>& row) {
      const auto n = static_cast<int64_t>(row.size());
      if (job.type == DType::kNVFP4) {
        quant::encode_row(job.type, row.data(), n,
                          {.tensor_scale = scales_[static_cast<size_t>(r / job.in->dims[1])]},
                          out + r * bytes);
      } else {
        quant::encode_row(job.type, row.data(), n, quant::EncodeOptions{}, out + r * bytes);
      }
    });
  }
  std::span<const std::byte> out() const { return out_; }
  std::span<const float> scales() const { return scales_; }

 private:
  // Calls each(row index, decoded row) for all rows, on all threads.
  template <class Each>
  Status for_rows(const Job& job, Each&& each) {
    const gguf::TensorInfo& t = *job.in;
    std::atomic<int64_t> bad{-1};
    pool_.parallel_for(t.rows(), 16, [&](int64_t begin, int64_t end, int thread) {
      std::vector<float>& row = rows_[static_cast<size_t>(thread)];
      row.resize(static_cast<size_t>(t.dims[0]));
      for (int64_t r = begin; r < end; ++r) {
        quant::decode_row(t.dtype, t.data + r * t.row_bytes(), t.dims[0], row.data());
        if (!job.factors.empty()) {
          const float factor = job.factors[static_cast<size_t>(r / t.dims[1])];
          for (float& x : row) x *= factor;
        }
        if (!std::all_of(row.begin(), row.end(), [](float x) { return std::isfinite(x); })) {
          bad.store(r, std::memory_order_relaxed);
          return;
        }
        each(r, row);
      }
    });
    if (bad.load() < 0) return {};
    return file_error("tensor {}: row {} has values that are not finite; the file is damaged, copy it again",
                      gguf::printable(t.name), bad.load());
  }

  // The tensor scale of NVFP4 for each matrix: that of its rows' largest magnitudes.
  Status find_scales(const Job& job) {
    std::vector<float> largest(static_cast<size_t>(job.in->rows()));
    QUIRE_CHECKED(for_rows(job, [&](int64_t r, const std::vector<float>& row) {
      float most = 0;
      for (const float x : row) most = std::max(most, std::fabs(x));
      largest[static_cast<size_t>(r)] = most;
    }));
    const int64_t rows = job.in->dims[1];
    for (int64_t m = 0; m < job.matrices(); ++m) {
      QUIRE_TRY(const float scale, quant::nvfp4_tensor_scale(largest.data() + m * rows, rows));
      scales_.push_back(scale);
    }
    return {};
  }

  ThreadPool pool_;
  std::vector<std::vector<float>> rows_;  // one per thread
  std::vector<std::byte> out_;
  std::vector<float> scales_;
};

void copy_metadata(const gguf::File& f, DType mostly, gguf::Writer& w) {
  constexpr std::array<std::string_view, 6> kReplaced = {
      "general.alignment",  // the writer's own
      "general.file_type", "general.quantization_version", "split.no", "split.count", "split.tensors.count"};
  for (const auto& [key, value] : f.entries())
    if (std::find(kReplaced.begin(), kReplaced.end(), key) == kReplaced.end()) w.add_value(key, value);
  w.add("general.file_type", file_type_code(mostly));
  w.add("general.quantization_version", uint32_t{2});
}

Status declare(const Job& job, gguf::Writer& w) {
  const gguf::TensorInfo& t = *job.in;
  const size_t n_dims = t.n_dims == 0 ? 1 : static_cast<size_t>(t.n_dims);
  QUIRE_CHECKED(w.add_tensor(t.name, job.type, std::span(t.dims).first(n_dims)));
  if (!job.encoded() || job.type != DType::kNVFP4) return {};
  const int64_t matrices[] = {job.matrices()};
  return w.add_tensor(job.scale_name(), DType::kF32, matrices);
}

void print_summary(const gguf::File& f, const std::vector<Job>& jobs, uint64_t file_bytes) {
  struct Sum {
    int64_t tensors = 0, before = 0, after = 0;
  };
  std::map<std::string, Sum> sums;
  for (const Job& j : jobs) {
    const std::string_view from = dtype_name(j.in->dtype), to = dtype_name(j.type);
    Sum& s = sums[j.encoded() ? fmt::format("{} -> {}", from, to) : fmt::format("{} kept", from)];
    ++s.tensors;
    s.before += j.in->bytes;
    s.after += j.out_bytes();
  }
  for (const auto& [what, s] : sums)
    fmt::print("{:<16} {:>5} tensors  {:>9} -> {}\n", what, s.tensors,
               human_bytes(static_cast<uint64_t>(s.before)), human_bytes(static_cast<uint64_t>(s.after)));
  fmt::print("{:<16} {:>5} tensors  {:>9} -> {}\n", "file", jobs.size(), human_bytes(f.mapped_bytes()),
             human_bytes(file_bytes));
}

Status quantize(const QuantizeOptions& o) {
  if (o.threads < 0 || o.threads > 1024) return request_error("--threads {}: must be 1 to 1024", o.threads);
  QUIRE_TRY(const Types types, choose_types(o));
  QUIRE_TRY(const gguf::File f, gguf::File::open(o.input));
  QUIRE_TRY(const std::vector<Job> jobs, plan(f, types).context(o.input));

  gguf::Writer w;
  copy_metadata(f, *types.ffn, w);
  for (const Job& job : jobs) QUIRE_CHECKED(declare(job, w).context(o.input));
  QUIRE_CHECKED(w.open(o.output));
  Encoder encoder(o.threads == 0 ? available_cpus() : o.threads);
  Progress progress("quantizing", f.tensor_bytes(), Progress::Unit::kBytes);
  for (const Job& job : jobs) {
    if (!job.encoded()) {
      QUIRE_CHECKED(w.write_tensor({job.in->data, static_cast<size_t>(job.in->bytes)}));
    } else {
      QUIRE_CHECKED(encoder.run(job).context(o.input));
      QUIRE_CHECKED(w.write_tensor(encoder.out()));
      if (job.type == DType::kNVFP4) QUIRE_CHECKED(w.write_tensor(std::as_bytes(encoder.scales())));
    }
    progress.add(job.in->bytes);
  }
  QUIRE_CHECKED(w.finish());
  print_summary(f, jobs, w.file_bytes());
  return {};
}

}  // namespace

Action add_quantize(CLI::App& app) {
  auto o = std::make_shared<QuantizeOptions>();
  app.add_option("input", o->input, "GGUF file (of a split model, the first shard)")->required();
  app.add_option("output", o->output, "File to write; appears only when it is complete")->required();
  app.add_option("--type", o->type,
                 "Type of the matrices: q8_0, q4_0, mxfp4, bf16, f16, f32, or nvfp4 (feed-forward and expert "
                 "matrices only)")
      ->required();
  app.add_option(
      "--head-type", o->head_type,
      "Type of the token embedding and the output head (default: as --type; with nvfp4, as they are)");
  app.add_option("--threads", o->threads, "Threads (default: all CPUs)");
  return [o] { return quantize(*o); };
}

}  // namespace quire::cli
