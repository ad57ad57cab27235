// Sampling on the GPU: microseconds, and what share of this run's copy bandwidth one read of the logits is.
#include <cstdio>

#include "cuda/support.h"
#include "ops/sampling/cuda/sample.h"

namespace quire::cuda_test {
namespace {

// About normal with a spread of 2, and one token in 10000 up to 20 higher: what language models' logits are like.
__global__ void fill(float* to, int64_t n, uint32_t seed) {
  for (int64_t i = blockIdx.x * int64_t{blockDim.x} + threadIdx.x; i < n; i += int64_t{gridDim.x} * blockDim.x) {
    uint32_t x = static_cast<uint32_t>(i) * 2654435761u + seed;
    float sum = 0;
    for (int k = 0; k < 4; ++k) {
      x = (x ^ (x >> 15)) * 2246822519u;
      x = (x ^ (x >> 13)) * 3266489917u;
      x ^= x >> 16;
      sum += static_cast<float>(x >> 8) * 0x1p-24f - 0.5f;
    }
    to[i] = sum * 3.5f + (x % 10007 == 0 ? static_cast<float>(x % 1000) * 0.02f : 0.0f);
  }
}

struct Case {
  const char* name;
  SampleRow row;
};
const Case kCases[] = {
    {"greedy", {}},
    {"temperature 1", {.temperature = 1.0f}},
    {"0.7, top-k 20, top-p 0.95", {.temperature = 0.7f, .top_p = 0.95f, .top_k = 20}},
    {"1.0, top-p 0.9", {.temperature = 1.0f, .top_p = 0.9f}},
    {"3.0, top-p 0.9 (flat)", {.temperature = 3.0f, .top_p = 0.9f}},
    {"1.0, min-p 0.05", {.temperature = 1.0f, .min_p = 0.05f}},
    {"1.0, typical-p 0.9", {.temperature = 1.0f, .typical_p = 0.9f}},
    {"0.7, top-k 20, penalties", {.temperature = 0.7f, .presence_penalty = 1.5f, .top_k = 20, .history = 0}},
    {"greedy, 5 log-probabilities", {.logprobs = 5}},
};

TEST(CudaSamplingBench, Sample) {
  constexpr int kVocab = 248320, kMost = 128;
  DeviceBuffer<float> logits(size_t{kVocab} * kMost), other(size_t{kVocab} * kMost), logprobs(kMost),
      top_logprobs(kMost * 8);
  fill<<<1024, 256>>>(logits.data(), int64_t{kVocab} * kMost, 1);
  CUDA_OK(cudaDeviceSynchronize());
  DeviceBuffer<int32_t> counts(std::vector<int32_t>(kVocab, 0)), seen(std::vector<int32_t>(1000, 0)),
      seen_count(std::vector<int32_t>(1, 0)), tokens(kMost), top_ids(kMost * 8), top_count(kMost), sampled(kMost);
  DeviceBuffer<SampleRow> rows(kMost);
  DeviceBuffer<char> workspace(static_cast<size_t>(cuda::sample_workspace_bytes(kMost, kVocab)));
  const float copy_ms = median_ms(
      [&] { must(cudaMemcpyAsync(other.data(), logits.data(), logits.bytes(), cudaMemcpyDeviceToDevice), "copy"); });
  const double copies = 2.0 * static_cast<double>(logits.bytes()) / static_cast<double>(copy_ms) * 1e3;
  std::printf("this run: copies %.2f TB/s\n", copies * 1e-12);
  for (const Case& c : kCases) {
    for (const int n : {1, 32, 128}) {
      std::vector<SampleRow> list(kMost, c.row);
      for (int i = 0; i < kMost; ++i) {
        list[static_cast<size_t>(i)].seed = static_cast<uint64_t>(i);
        list[static_cast<size_t>(i)].flags = kSampleTentative;  // rows share the history, which is only read then
      }
      rows.upload(list);
      const cuda::SampleParams p{.logits = logits.data(),
                                 .logits_stride = kVocab,
                                 .rows = n,
                                 .vocab = kVocab,
                                 .row = rows.data(),
                                 .history = {counts.data(), seen.data(), seen_count.data(), 1, kVocab, 1000},
                                 .tokens = tokens.data(),
                                 .logprobs = logprobs.data(),
                                 .top_ids = top_ids.data(),
                                 .top_logprobs = top_logprobs.data(),
                                 .top_count = top_count.data(),
                                 .max_top = 8,
                                 .sampled = sampled.data()};
      const float us = 1e3f * median_ms(
                                  [&] {
                                    const Status launched = cuda::launch_sample(nullptr, p, workspace.data());
                                    QUIRE_CHECK(launched.ok(), "{}", launched.error().message);
                                  },
                                  21, [&] { must(cudaMemsetAsync(other.data(), 1, other.bytes()), "flush"); });
      const double bytes = 4.0 * n * kVocab;
      std::printf("sample %-28s %3d x %d: %7.1f us, %5.2f TB/s, %3.0f%% of copies\n", c.name, n, kVocab,
                  static_cast<double>(us), bytes / static_cast<double>(us) * 1e-6,
                  100 * bytes / static_cast<double>(us) * 1e6 / copies);
    }
  }
}

}  // namespace
}  // namespace quire::cuda_test
