// Stands in for gpu.cu where the program is compiled without CUDA.
#include "ops/conformance/gpu.h"

namespace quire::conformance {

Result<std::unique_ptr<Gpu>> Gpu::create(int) {
  return request_error("this program is compiled without CUDA (the preset `cuda` needs nvcc 13)");
}

}  // namespace quire::conformance
