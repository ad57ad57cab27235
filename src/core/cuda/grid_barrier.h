// A barrier for all blocks of a grid (grid_barrier.cuh), as the host sees it.
#pragma once

namespace quire::cuda {

// How many blocks have arrived, ever, in device memory: 0 at first, and a multiple of the grid between kernels. So all
// kernels that use one have grids of the same size and follow each other in one stream.
using GridBarrier = unsigned long long;

}  // namespace quire::cuda
