#include "engine/cuda_weights.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "core/cpu.h"
#include "core/cuda/device.h"
#include "core/cuda/memory.h"
#include "core/memory.h"
#include "core/thread_pool.h"
#include "engine/gpu_placement.h"
#include "engine/loaded_model.h"
#include "engine/speculative_options.h"
#include "ops/cuda/weights.h"
#include "ops/gemm/cuda/pack.h"
#include "quant/format.h"

namespace quire {
namespace {

using cuda::Memory;

// Bytes of the file on their way to the device: pinned pieces, and where they land until they are packed.
class Ring {
 public:
  static constexpr int64_t kPiece = int64_t{32} << 20;  // of rows; a little more is allocated, for alignment
  static constexpr int kPieces = 3;
  static constexpr int kMostThreads = 8;  // that read the file: one takes five times as long

  // gives_back: what was read of a mapped file leaves memory, of which there is no other (core/memory.h).
  Ring(int threads, bool gives_back)
      : gives_back_(gives_back), pool_(std::min(threads > 0 ? threads : available_cpus(), kMostThreads)) {}
  Status create() {
    QUIRE_CHECKED(cuda::check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "creating a stream"));
    for (Piece& p : pieces_) {
      QUIRE_TRY(p.host, Memory::create(Memory::Where::kPinned, kPiece + 256, "loading weights"));
      QUIRE_TRY(p.device, Memory::create(Memory::Where::kDevice, kPiece + 256, "loading weights"));
      QUIRE_CHECKED(cuda::check(cudaEventCreateWithFlags(&p.done, cudaEventDisableTiming), "creating an event"));
    }
    return {};
  }
  ~Ring() {
    if (stream_ == nullptr) return;
    cudaStreamSynchronize(stream_);
    for (Piece& p : pieces_)
      if (p.done != nullptr) cudaEventDestroy(p.done);
    cudaStreamDestroy(stream_);
  }

  // A piece that nothing uses any more: `fill(host)` writes `bytes`, which are then on the device when `use(device)`
  // enqueues on stream().
  template <class Fill, class Use>
  Status send(int64_t bytes, Fill&& fill, Use&& use) {
    Piece& p = pieces_[next_];
    next_ = (next_ + 1) % kPieces;
    QUIRE_CHECKED(cuda::check(cudaEventSynchronize(p.done), "loading weights"));
    fill(p.host.data());
    QUIRE_CHECKED(cuda::check(
        cudaMemcpyAsync(p.device.data(), p.host.data(), static_cast<size_t>(bytes), cudaMemcpyHostToDevice, stream_),
        "copying weights to the GPU"));
    QUIRE_CHECKED(use(p.device.data()));
    return cuda::check(cudaEventRecord(p.done, stream_), "loading weights");
  }
  // `count` times `bytes`, `from_stride` bytes apart, one behind the other into a piece.
  void copy(std::byte* to, const std::byte* from, int64_t bytes, int64_t count = 1, int64_t from_stride = 0) {
    constexpr int64_t kGrain = int64_t{256} << 10;
    const int64_t grains = (bytes + kGrain - 1) / kGrain;
    pool_.parallel_for(count * grains, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t at = i % grains * kGrain, n = std::min(kGrain, bytes - at);
        std::memcpy(to + i / grains * bytes + at, from + i / grains * from_stride + at, static_cast<size_t>(n));
      }
    });
    if (gives_back_)
      for (int64_t i = 0; i < count; ++i) give_back_pages({from + i * from_stride, static_cast<size_t>(bytes)});
  }
  // Calls fn(begin, end) for ranges of `rows` rows, on all threads.
  template <class Fn>
  void each(int64_t rows, Fn&& fn) {
    constexpr int64_t kGrain = 16;
    pool_.parallel_for(rows, kGrain, [&](int64_t begin, int64_t end, int) { fn(begin, end); });
  }
  cudaStream_t stream() const { return stream_; }
  Status finish() { return cuda::check(cudaStreamSynchronize(stream_), "loading weights"); }

 private:
  struct Piece {
    Memory host, device;
    cudaEvent_t done = nullptr;
  };
  const bool gives_back_;
  ThreadPool pool_;
  Piece pieces_[kPieces];
  size_t next_ = 0;
  cudaStream_t stream_ = nullptr;
};

class Placer final : public WeightPlacer {
 public:
  Placer(Ring& ring, std::vector<Memory>& memory) : ring_(ring), memory_(memory) {}
  const Status& status() const { return status_; }
  int64_t bytes() const { return bytes_; }

  void matrix(Weight& w) override {
    if (w.empty() || !status_.ok()) return;
    keep(place(w, nullptr, nullptr, nullptr));
  }
  void gate_up(Weight& gate, Weight& up) override {
    if (gate.empty() || !status_.ok()) return;
    keep(place(gate, &up, nullptr, nullptr));
  }
  // A shared expert of the others' shapes and types lies behind them, as one more: its rows then share their launches.
  void experts(Weight& gate, Weight& up, Weight& down, Weight& shared_gate, Weight& shared_up,
               Weight& shared_down) override {
    if (!stacks_shared_expert(gate, up, down, shared_gate, shared_up, shared_down))
      return WeightPlacer::experts(gate, up, down, shared_gate, shared_up, shared_down);
    if (status_.ok()) keep(place(gate, &up, &shared_gate, &shared_up));
    if (status_.ok()) keep(place(down, nullptr, &shared_down, nullptr));
  }
  void table(Weight& w) override {
    if (status_.ok()) keep(copy_table(w));
  }
  void vector(Tensor& t) override {
    if (t.empty() || !status_.ok()) return;
    keep(upload(t.data, t.elems() * 4, "a vector", [&](std::byte* at) { t.data = at; }));
  }

 private:
  void keep(Status s) {
    if (status_.ok() && !s.ok()) status_ = std::move(s);
  }
  Result<std::byte*> allocate(int64_t bytes, std::string_view what) {
    QUIRE_TRY(Memory m, Memory::create(Memory::Where::kDevice, bytes, what));
    bytes_ += bytes;
    memory_.push_back(std::move(m));
    return memory_.back().data();
  }
  template <class Set>
  Status upload(const void* host, int64_t bytes, std::string_view what, Set&& set) {
    QUIRE_TRY(std::byte* const at, allocate(bytes, what));
    QUIRE_CHECKED(cuda::check(cudaMemcpy(at, host, static_cast<size_t>(bytes), cudaMemcpyHostToDevice), what));
    set(at);
    return {};
  }
  // Their factors, one after the other if one of them has any.
  Status scales(Weight& w, Weight* behind) {
    if (w.scale == nullptr && (behind == nullptr || behind->scale == nullptr)) return {};
    std::vector<float> all(static_cast<size_t>(w.experts) + (behind == nullptr ? 0 : 1), 1.0f);
    if (w.scale != nullptr) std::copy_n(w.scale, w.experts, all.begin());
    if (behind != nullptr && behind->scale != nullptr) all.back() = *behind->scale;
    return upload(all.data(), std::ssize(all) * 4, "weights' factors", [&](std::byte* at) {
      w.scale = reinterpret_cast<const float*>(at);
      if (behind != nullptr) behind->scale = w.scale + w.experts;
    });
  }

  // A matrix, or a pair, into memory of its own, with another of the same shape behind it if there is one.
  Status place(Weight& w, Weight* up, Weight* behind, Weight* behind_up) {
    if (up != nullptr && (w.dtype != up->dtype || w.rows != up->rows || w.cols != up->cols || w.experts != up->experts))
      return file_error("a gate matrix of {} [{}, {}] and an up matrix of {} [{}, {}]: a GPU needs them alike",
                        dtype_name(w.dtype), w.rows, w.cols, dtype_name(up->dtype), up->rows, up->cols);
    gemm::PackedWeight to = up == nullptr ? cuda::packed(w) : cuda::packed_pair(w);
    if (behind != nullptr) ++to.experts;
    QUIRE_TRY(std::byte* const at, allocate(to.bytes(), "weights"));
    QUIRE_CHECKED(pack(w, up, at, to, 0));
    if (behind != nullptr) QUIRE_CHECKED(pack(*behind, behind_up, at, to, w.experts));
    for (auto [first, second] : {std::pair{&w, behind}, std::pair{up, behind_up}}) {
      if (first == nullptr) continue;
      first->data = at;
      first->expert_stride = 0;
      if (second != nullptr) second->data = at + w.experts * to.expert_bytes();
      QUIRE_CHECKED(scales(*first, second));
    }
    return {};
  }

  // The experts of w as experts first_expert, ... of what is packed at `at`.
  Status pack(const Weight& w, const Weight* up, std::byte* at, const gemm::PackedWeight& to, int64_t first_expert) {
    // Whole experts, or whole tiles of rows of one of them: as much as a piece holds, up's rows behind gate's.
    const int64_t row = w.row_bytes(), room = Ring::kPiece / (up == nullptr ? 1 : 2);
    const int64_t tile = up == nullptr ? 16 : 8;
    const int64_t rows_at_once = std::min(w.rows, room / row / tile * tile);
    if (rows_at_once == 0) return file_error("rows of {} bytes are more than weights are loaded in", row);
    const int64_t experts_at_once = rows_at_once < w.rows ? 1 : std::min(w.experts, room / (w.rows * row));
    for (int64_t e = 0; e < w.experts; e += experts_at_once)
      for (int64_t first = 0; first < w.rows; first += rows_at_once) {
        const int64_t rows = std::min(rows_at_once, w.rows - first), experts = std::min(experts_at_once, w.experts - e),
                      bytes = rows * row;
        const int64_t second = (experts * bytes + 255) / 256 * 256;
        QUIRE_CHECKED(ring_.send(
            up == nullptr ? experts * bytes : second + experts * bytes,
            [&](std::byte* host) {
              const auto copy = [&](std::byte* to, const Weight& from) {
                ring_.copy(to, from.row(first, e), bytes, experts, from.row(0, 1) - from.row(0));
              };
              copy(host, w);
              if (up != nullptr) copy(host + second, *up);
            },
            [&](std::byte* device) {
              return gemm::launch_pack(ring_.stream(), {.dtype = w.dtype,
                                                        .source = device,
                                                        .source2 = up == nullptr ? nullptr : device + second,
                                                        .rows = static_cast<int32_t>(rows),
                                                        .cols = static_cast<int32_t>(w.cols),
                                                        .experts = static_cast<int32_t>(experts),
                                                        .packed = at,
                                                        .destination = to,
                                                        .first_row_tile = static_cast<int32_t>(first / tile),
                                                        .first_expert = static_cast<int32_t>(first_expert + e)});
            }));
      }
    return {};
  }

  // Rows as the file has them where the GPU decodes them, else in half precision. A table that all layers have rows of
  // is most of a small model: every thread decodes.
  Status copy_table(Weight& w) {
    const DType type = table_type_on_gpu(w);
    const bool as_it_is = type == w.dtype;
    const int64_t row = dtype_bytes(type, w.cols), most = Ring::kPiece / row;
    QUIRE_TRY(std::byte* const at, allocate(w.rows * row, "the embedding"));
    for (int64_t first = 0; first < w.rows; first += most) {
      const int64_t rows = std::min(most, w.rows - first);
      QUIRE_CHECKED(ring_.send(
          rows * row,
          [&](std::byte* host) {
            if (as_it_is) {
              ring_.copy(host, w.row(first), rows * row);
              return;
            }
            ring_.each(rows, [&](int64_t begin, int64_t end) {
              std::vector<float> decoded(static_cast<size_t>(w.cols));
              for (int64_t r = begin; r < end; ++r) {
                quant::decode_row(w.dtype, w.row(first + r), w.cols, decoded.data());
                auto* const to = reinterpret_cast<half*>(host + r * row);
                for (int64_t c = 0; c < w.cols; ++c) to[c] = to_half(decoded[static_cast<size_t>(c)]);
              }
            });
          },
          [&](std::byte* device) {
            return cuda::check(cudaMemcpyAsync(at + first * row, device, static_cast<size_t>(rows * row),
                                               cudaMemcpyDeviceToDevice, ring_.stream()),
                               "placing the embedding");
          }));
    }
    w.dtype = type;
    w.data = at;
    return {};
  }

  Ring& ring_;
  std::vector<Memory>& memory_;
  int64_t bytes_ = 0;
  Status status_;
};

class Loaded final : public CudaWeights {
 public:
  const Decoder& decoder() const override { return *decoder_; }
  const Decoder* mtp() const override { return mtp_ ? &*mtp_ : nullptr; }
  int64_t bytes() const override { return bytes_; }

  // `mapped`: those layers that it has.
  Status place(const Decoder& mapped, const MtpBlock* block, int threads) {
    QUIRE_TRY(const cuda::DeviceLimits limits, cuda::device_limits());
    Ring ring(threads, limits.integrated);
    QUIRE_CHECKED(ring.create());
    Placer placer(ring, memory_);
    decoder_ = mapped.placed(placer);
    if (block != nullptr) {
      MtpWeights weights = block->weights;
      visit(weights, placer);
      mtp_ = mtp_decoder(*decoder_, weights, kDraftedTokens);
    }
    if (!placer.status().ok()) return placer.status();
    bytes_ = placer.bytes();
    return ring.finish();
  }

 private:
  std::vector<Memory> memory_;
  std::optional<Decoder> decoder_, mtp_;
  int64_t bytes_ = 0;
};

class PlacedTower final : public CudaTower {
 public:
  const VisionTower& tower() const override { return *tower_; }
  int64_t bytes() const override { return bytes_; }

  Status place(const VisionTower& mapped, int threads) {
    QUIRE_TRY(const cuda::DeviceLimits limits, cuda::device_limits());
    Ring ring(threads, limits.integrated);
    QUIRE_CHECKED(ring.create());
    Placer placer(ring, memory_);
    tower_ = mapped.placed(placer);
    if (!placer.status().ok()) return placer.status();
    bytes_ = placer.bytes();
    return ring.finish();
  }

 private:
  std::vector<Memory> memory_;
  std::unique_ptr<const VisionTower> tower_;
  int64_t bytes_ = 0;
};

}  // namespace

Result<std::unique_ptr<const CudaTower>> place_on_gpu(const VisionTower& mapped, int threads) {
  auto placed = std::make_unique<PlacedTower>();
  QUIRE_CHECKED(placed->place(mapped, threads));
  return std::unique_ptr<const CudaTower>(std::move(placed));
}

Result<std::shared_ptr<const CudaWeights>> LoadedModel::on_gpu(int threads, bool with_mtp, LayerRange layers) const {
  const MtpBlock* block = nullptr;
  if (with_mtp) {
    QUIRE_TRY(block, mtp());
  }
  const std::lock_guard lock(copies_mutex_);
  int gpu = 0;
  QUIRE_CHECKED(cuda::check(cudaGetDevice(&gpu), "asking for the current GPU"));
  const std::tuple key(gpu, with_mtp, layers.first, layers.end);
  if (auto made = on_gpu_[key].lock()) return made;
  auto loaded = std::make_shared<Loaded>();
  QUIRE_CHECKED(loaded->place(model->decoder().part(layers, with_mtp), block, threads));
  on_gpu_[key] = loaded;
  return std::shared_ptr<const CudaWeights>(std::move(loaded));
}

Result<std::shared_ptr<const CudaTower>> LoadedModel::tower_on_gpu(int threads) const {
  const std::lock_guard lock(copies_mutex_);
  int gpu = 0;
  QUIRE_CHECKED(cuda::check(cudaGetDevice(&gpu), "asking for the current GPU"));
  if (auto made = tower_on_gpu_[gpu].lock()) return made;
  QUIRE_TRY(std::shared_ptr<const CudaTower> placed, place_on_gpu(*vision->tower, threads));
  tower_on_gpu_[gpu] = placed;
  return placed;
}

}  // namespace quire
