// What the kernels of moe are made for. No CUDA headers: models are judged by these before anything is loaded.
#pragma once

namespace quire::moe_cuda {

inline constexpr int kMaxExperts = 1024, kMaxTopK = 32;

}  // namespace quire::moe_cuda
