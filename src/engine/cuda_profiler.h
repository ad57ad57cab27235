// What a GPU did and when, kernel by kernel, as CUPTI tells it. libcupti comes with CUDA's toolkit and not with the
// driver: it is opened at run time, and only where somebody asks for a profile. No CUDA headers here: cuda_profiler.cu,
// or none.cpp.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "core/result.h"

namespace quire {

struct GpuActivity {
  enum class Kind { kKernel, kToDevice, kToHost, kOtherCopy };  // copies within the device, clearing memory
  Kind kind = Kind::kKernel;
  std::string name;                        // of a kernel, demangled; what a copy is
  int64_t begin = 0, end = 0;              // nanoseconds of the GPU's clock
  std::array<int32_t, 3> grid{}, block{};  // of a kernel
  int64_t bytes = 0;                       // of a copy
};

class CudaProfiler {
 public:
  // `library`: path of libcupti; empty: searched for where toolkits put it. One at a time, and made before anything
  // else uses the GPU, so that graphs are recorded kernel by kernel. An error says what is missing.
  static Result<std::unique_ptr<CudaProfiler>> create(const std::string& library);
  virtual ~CudaProfiler() = default;
  // Forgets what was recorded so far. The GPU should be idle.
  virtual Status start() = 0;
  // What was recorded since, in order of its beginning. The GPU must be idle.
  virtual Result<std::vector<GpuActivity>> stop() = 0;
};

}  // namespace quire
