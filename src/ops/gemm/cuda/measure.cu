#include "ops/gemm/cuda/measure.h"

#include <cuda_runtime.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "core/cuda/device.h"
#include "core/cuda/memory.h"
#include "ops/gemm/cuda/gemm.h"

namespace quire::gemm {
namespace {

using cuda::check;
using cuda::Memory;

// More than the L2 holds, in turn, so that weights come from memory as they do in a model.
constexpr int64_t kWeightBytes = int64_t{256} << 20;
constexpr int kRounds = 9;

// Plausible numbers: small bf16, any codes, and scales that are no infinities. Zeros would let the card clock higher.
__global__ void fill_kernel(uint16_t* to, int64_t count, uint32_t seed) {
  for (int64_t i = blockIdx.x * int64_t{256} + threadIdx.x; i < count; i += gridDim.x * int64_t{256}) {
    uint32_t r = static_cast<uint32_t>(i) * 0x9e3779b9u + seed;
    r = (r ^ (r >> 15)) * 0x85ebca6bu;
    r ^= r >> 13;
    to[i] = static_cast<uint16_t>((r & 0x80ff) | 0x3c00 | (r >> 8 & 0x0100));
  }
}
Status fill(const Memory& memory, int64_t bytes, uint32_t seed) {
  fill_kernel<<<1024, 256>>>(reinterpret_cast<uint16_t*>(memory.data()), bytes / 2, seed);
  return check(cudaGetLastError(), "filling memory to measure with");
}

Result<Memory> filled(int64_t bytes, uint32_t seed) {
  QUIRE_TRY(Memory memory, Memory::create(Memory::Where::kDevice, bytes, "memory to measure with"));
  QUIRE_CHECKED(fill(memory, bytes, seed));
  return Result<Memory>(std::move(memory));
}

// Streams, events and graphs, ended with their scope.
struct Stream {
  cudaStream_t stream = nullptr;
  ~Stream() {
    if (stream != nullptr) cudaStreamDestroy(stream);
  }
  Status create() { return check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "a stream to measure in"); }
};
struct Event {
  cudaEvent_t event = nullptr;
  ~Event() {
    if (event != nullptr) cudaEventDestroy(event);
  }
  Status create() { return check(cudaEventCreate(&event), "an event to measure with"); }
};
struct Graph {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  Graph() = default;
  Graph(Graph&& other) noexcept
      : graph(std::exchange(other.graph, nullptr)), exec(std::exchange(other.exec, nullptr)) {}
  ~Graph() {
    if (exec != nullptr) cudaGraphExecDestroy(exec);
    if (graph != nullptr) cudaGraphDestroy(graph);
  }
};

std::string name_of(const TunedShape& s, int32_t rows) {
  constexpr std::string_view kNames[] = {"bf16", "bf16x2", "bf16x3", "q8_0", "q4_k", "q6_k", "mxfp4", "nvfp4"};
  return fmt::format("{} {}{} x {}{}, {} rows", kNames[static_cast<size_t>(s.format)], s.paired ? "gate+up " : "",
                     s.rows, s.cols, s.experts > 1 ? fmt::format(", {} experts", s.experts) : "", rows);
}

// One shape's memory, for its largest number of rows.
class Bench {
 public:
  Bench(const TunedShape& shape, const cuda::DeviceLimits& device) : shape_(shape), device_(device) {
    weight_ = {.format = shape.format,
               .paired = shape.paired,
               .rows = shape.rows,
               .cols = shape.cols,
               .experts = shape.experts};
  }

  Status create(int32_t most_rows) {
    do {
      QUIRE_TRY(Memory copy, filled(weight_.bytes(), static_cast<uint32_t>(weights_.size()) * 977 + 1));
      weights_.push_back(std::move(copy));
    } while (static_cast<int64_t>(weights_.size()) * weight_.bytes() < kWeightBytes);
    QUIRE_TRY(x_, filled(int64_t{most_rows} * shape_.cols * 2, 5));
    QUIRE_TRY(y_, filled(int64_t{most_rows} * shape_.rows * 4, 7));
    QUIRE_TRY(offsets_, Memory::create(Memory::Where::kDevice, (shape_.experts + 1) * 4, "offsets of experts"));
    int64_t floats = 0;
    for (const Path path : {Path::kAuto, Path::kDealt})
      floats = std::max(floats, sliced_floats(product(0, most_rows, path), device_));
    for (const int32_t rows : tuned_rows(shape_))
      floats = std::max(floats, sliced_floats(product(0, rows, Path::kAuto), device_));
    QUIRE_TRY(sums_, Memory::create(Memory::Where::kDevice, std::max<int64_t>(floats, 64) * 4, "sums to measure with"));
    QUIRE_CHECKED(stream_.create());
    QUIRE_CHECKED(begin_.create());
    QUIRE_CHECKED(end_.create());
    return check(cudaDeviceSynchronize(), "filling memory to measure with");  // in another stream
  }

  Result<TunedCase> measure(int32_t rows) {
    QUIRE_CHECKED(sort_by_expert(rows));
    TunedCase c{.name = name_of(shape_, rows),
                .product = product(0, rows, Path::kAuto),
                .limits = tile_limits(shape_.format, device_),
                .timings = {}};
    const std::vector<Timing> all = candidates(c);
    std::vector<Graph> graphs;
    // So many launches that a replay is long beside what its start takes.
    const int launches = rows * int64_t{shape_.rows} >= int64_t{4} << 20 ? 4 : 24;
    for (const Timing& t : all) {
      QUIRE_TRY(Graph g, record(rows, t, launches));
      graphs.push_back(std::move(g));
    }
    std::vector<std::vector<double>> us(all.size());
    for (int round = 0; round <= kRounds; ++round)  // the first one warms up
      for (size_t i = 0; i < all.size(); ++i) {
        QUIRE_TRY(const double ms, replay(graphs[i]));
        if (round > 0) us[i].push_back(ms * 1e3 / launches);
      }
    for (size_t i = 0; i < all.size(); ++i) {
      std::nth_element(us[i].begin(), us[i].begin() + kRounds / 2, us[i].end());
      c.timings.push_back({all[i].path, all[i].tile_rows, us[i][kRounds / 2]});
    }
    // What it was measured in is gone soon.
    c.product.problem.x = nullptr;
    c.product.sums = nullptr;
    return c;
  }

 private:
  Product product(size_t copy, int32_t rows, Path path, int32_t tile_rows = 0) const {
    Product p(reinterpret_cast<const __nv_bfloat16*>(x_.data()), shape_.cols, rows);
    if (shape_.experts > 1) {
      p.problem.offsets = reinterpret_cast<const int32_t*>(offsets_.data());
      p.problem.most_rows = rows / shape_.experts;
    }
    PackedWeight w = weight_;
    w.data = weights_[copy % weights_.size()].data();
    p.add(w, {.y = y_.data(), .y_stride = shape_.rows, .out = shape_.out});
    p.path = path;
    p.tile_rows = tile_rows;
    p.room = shape_.experts == 1;
    p.sums = reinterpret_cast<float*>(sums_.data());
    return p;
  }

  Status sort_by_expert(int32_t rows) const {
    std::vector<int32_t> offsets(static_cast<size_t>(shape_.experts) + 1);
    for (int32_t e = 0; e <= shape_.experts; ++e)
      offsets[static_cast<size_t>(e)] = static_cast<int32_t>(int64_t{rows} * e / shape_.experts);
    return check(cudaMemcpy(offsets_.data(), offsets.data(), offsets.size() * 4, cudaMemcpyHostToDevice),
                 "offsets of experts");
  }

  // What takes the case. Tiles of more rows than there are only waste, but limits are fitted to every choice that they
  // may make, and a choice without a time counts as a bad one.
  std::vector<Timing> candidates(const TunedCase& c) const {
    std::vector<Timing> all;
    const int32_t rows = c.product.problem.rows;
    const auto offer = [&](Path path, int32_t tile_rows) {
      if (takes(product(0, rows, path, tile_rows), device_)) all.push_back({path, tile_rows, 0});
    };
    if (shape_.experts == 1 && rows <= 128) offer(Path::kStream, 0);
    if (shape_.experts == 1 && can_sweep(c.product, device_)) offer(Path::kSweep, 0);
    for (const Path path : {Path::kTile, Path::kDealt, Path::kSliced}) {
      const int32_t most = c.limits.most_rows(c.product.problem, path == Path::kSliced);
      for (const int32_t tile_rows : {32, 64, 128, 192, 256}) {
        if (tile_rows > most) break;
        const int64_t tiles = c.product.row_blocks() * ((rows + tile_rows - 1) / tile_rows);
        if (path != Path::kDealt || tiles >= c.limits.multiprocessors) offer(path, tile_rows);
      }
    }
    return all;
  }

  Result<Graph> record(int32_t rows, const Timing& t, int launches) {
    Graph g;
    QUIRE_CHECKED(check(cudaStreamBeginCapture(stream_.stream, cudaStreamCaptureModeThreadLocal), "recording"));
    Status launched;
    for (int i = 0; i < launches && launched.ok(); ++i)
      launched = launch_gemm(stream_.stream, product(static_cast<size_t>(i), rows, t.path, t.tile_rows));
    const cudaError_t ended = cudaStreamEndCapture(stream_.stream, &g.graph);
    QUIRE_CHECKED(std::move(launched));
    QUIRE_CHECKED(check(ended, "recording"));
    QUIRE_CHECKED(check(cudaGraphInstantiate(&g.exec, g.graph, 0), "recording"));
    return Result<Graph>(std::move(g));
  }

  // Milliseconds.
  Result<double> replay(const Graph& g) {
    QUIRE_CHECKED(check(cudaEventRecord(begin_.event, stream_.stream), "measuring"));
    QUIRE_CHECKED(check(cudaGraphLaunch(g.exec, stream_.stream), "measuring"));
    QUIRE_CHECKED(check(cudaEventRecord(end_.event, stream_.stream), "measuring"));
    QUIRE_CHECKED(check(cudaEventSynchronize(end_.event), "measuring"));
    float ms = 0;
    QUIRE_CHECKED(check(cudaEventElapsedTime(&ms, begin_.event, end_.event), "measuring"));
    return static_cast<double>(ms);
  }

  TunedShape shape_;
  cuda::DeviceLimits device_;
  PackedWeight weight_;
  std::vector<Memory> weights_;
  Memory x_, y_, offsets_, sums_;
  Stream stream_;
  Event begin_, end_;
};

}  // namespace

Result<std::vector<TunedCase>> measure_products(int gpu, MeasuredCard& card,
                                                const std::function<void(const TunedCase&)>& progress) {
  int gpus = 0;
  if (const cudaError_t code = cudaGetDeviceCount(&gpus); code != cudaSuccess || gpu >= gpus)
    return request_error("--gpu {}: there is no such NVIDIA GPU ({})", gpu,
                         code == cudaSuccess ? fmt::format("{} can be seen", gpus) : cudaGetErrorString(code));
  QUIRE_CHECKED(check(cudaSetDevice(gpu), fmt::format("--gpu {}", gpu)));
  cudaDeviceProp properties;
  QUIRE_CHECKED(check(cudaGetDeviceProperties(&properties, gpu), "asking for the GPU's name"));
  card.name = properties.name;
  QUIRE_TRY(card.limits, cuda::device_limits());
  std::vector<TunedCase> cases;
  for (const TunedShape& shape : tuned_shapes()) {
    const std::vector<int32_t> rows = tuned_rows(shape);
    Bench bench(shape, card.limits);
    QUIRE_CHECKED(bench.create(*std::max_element(rows.begin(), rows.end())));
    for (const int32_t n : rows) {
      QUIRE_TRY(TunedCase c, bench.measure(n));
      progress(c);
      cases.push_back(std::move(c));
    }
  }
  return cases;
}

}  // namespace quire::gemm
