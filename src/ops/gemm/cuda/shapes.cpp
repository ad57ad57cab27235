#include "ops/gemm/cuda/measure.h"

namespace quire::gemm {

std::vector<TunedShape> tuned_shapes() {
  return {
      {.rows = 12352, .cols = 2048},
      {.rows = 9216, .cols = 2048},
      {.rows = 2048, .cols = 4096, .out = Out::kAddF32},
      {.rows = 16384, .cols = 5120},
      {.rows = 5120, .cols = 6144, .out = Out::kAddF32},
      {.format = TileFormat::kNvfp4, .rows = 12352, .cols = 2048},
      {.format = TileFormat::kNvfp4, .rows = 2048, .cols = 4096, .out = Out::kAddF32},
      {.format = TileFormat::kNvfp4, .rows = 17408, .cols = 5120, .paired = true},
      {.format = TileFormat::kNvfp4, .rows = 5120, .cols = 17408, .out = Out::kAddF32},
      {.format = TileFormat::kQ8_0, .rows = 4096, .cols = 4096},
      {.format = TileFormat::kQ8_0, .rows = 4096, .cols = 12288, .out = Out::kAddF32},
      {.format = TileFormat::kQ4_K, .rows = 12288, .cols = 4096, .paired = true},
      {.format = TileFormat::kNvfp4, .rows = 512, .cols = 2048, .paired = true, .experts = 64},
      {.format = TileFormat::kNvfp4, .rows = 2048, .cols = 512, .experts = 64},
  };
}

std::vector<int32_t> tuned_rows(const TunedShape& shape) {
  if (shape.experts == 1) return {1, 4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024, 2048};
  std::vector<int32_t> rows;
  for (const int32_t each : {8, 16, 24, 32, 48, 64, 96, 128, 192, 256}) rows.push_back(each * shape.experts);
  return rows;
}

}  // namespace quire::gemm
