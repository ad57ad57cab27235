// What a GPU's time went to: records of kernels sorted into steps and buckets, and how that is printed.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/cuda_profiler.h"
#include "model/cost.h"

namespace quire::cli {

enum class Bucket {
  kExperts,      // and the shared one
  kFeedForward,  // dense
  kDelta,
  kAttention,
  kProjections,  // into and out of attention and delta net
  kHead,
  kNorms,  // and what else is done to each element; the embedding
  kRouting,
  kSampling,
  kCopies,
  kOther,
  kIdle,  // nothing runs
};
inline constexpr int kBuckets = static_cast<int>(Bucket::kIdle) + 1;
std::string_view bucket_name(Bucket b);

// "stream_kernel" of "void quire::gemm::stream_kernel<...>(...)".
std::string_view kernel_name(std::string_view demangled);
// Whether the table of kernels says what this one does. Those it does not know fall into kOther.
bool is_known_kernel(std::string_view name);

// The bucket of each. One kernel computes all products: whose it is, its neighbours say. Records are those of one stream,
// in order.
std::vector<Bucket> sort_into_buckets(std::span<const GpuActivity> activities);

// Steps [first, end) of records that belong together. A step ends with the copy of its results to the host.
struct ProfiledSteps {
  size_t first = 0, end = 0;  // records
  int64_t steps = 0;
  int64_t begin_ns = 0, end_ns = 0;
};
struct ProfiledPhases {
  ProfiledSteps prompts, decode;
};
// The steps up to the last one with kernels of prompts, and the `decode_steps` after it. Nothing if there are not as many.
std::optional<ProfiledPhases> find_phases(std::span<const GpuActivity> activities, int64_t decode_steps);

// Time and launches of a bucket in a phase. Kernels may overlap (the next one starts while the last one ends): a moment
// belongs to the one that started first, so that everything adds up to the phase.
struct BucketTime {
  double seconds = 0;
  int64_t launches = 0;
};
struct PhaseProfile {
  ProfiledSteps steps;
  BucketTime buckets[kBuckets];
  struct Kernel {
    std::string name;
    Bucket bucket;
    BucketTime time;
  };
  std::vector<Kernel> kernels;  // the longest first

  double seconds() const { return static_cast<double>(steps.end_ns - steps.begin_ns) * 1e-9; }
};
PhaseProfile profile_phase(std::span<const GpuActivity> activities, std::span<const Bucket> buckets,
                           const ProfiledSteps& steps);

// Bytes that a bucket must move in a decode step of so many sequences with `context` positions each; 0: not counted.
double bucket_bytes(Bucket b, const gguf::File& file, const ModelCost& cost, int32_t sequences,
                    double context);

// `tokens`: of the phase. `bytes`: of each bucket and step, or empty; `bandwidth`: bytes a second that the GPU moves.
struct PhaseHeading {
  std::string title;
  int64_t tokens = 0;
  std::vector<double> bytes;
  double bandwidth = 0;
};
std::string phase_table(const PhaseProfile& p, const PhaseHeading& h);
nlohmann::ordered_json phase_json(const PhaseProfile& p, const PhaseHeading& h);

// The Chrome trace format (chrome://tracing, ui.perfetto.dev): a row for each bucket, one for the steps.
std::string chrome_trace(std::span<const GpuActivity> activities, std::span<const Bucket> buckets);

}  // namespace quire::cli
