// Stands in for measure.cu where the program is compiled without CUDA.
#include "ops/gemm/cuda/measure.h"

namespace quire::gemm {

Result<std::vector<TunedCase>> measure_products(int, MeasuredCard&, const std::function<void(const TunedCase&)>&) {
  return request_error(
      "this program is compiled without CUDA (the preset `cuda` needs nvcc 13): no GPU can be measured");
}

}  // namespace quire::gemm
