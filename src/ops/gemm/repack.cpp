#include "ops/gemm/repack.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <unordered_set>
#include <vector>

#include "ops/gemm/core.h"

namespace quire {
namespace {

int64_t groups_of(const Weight& w) {
  return (w.rows + gemm::kGroupRows - 1) / gemm::kGroupRows;
}
int64_t copy_bytes(const Weight& w) {
  return w.experts * groups_of(w) * gemm::repacked_group_bytes(w.dtype, w.cols);
}

// Those to copy, each once, in their order.
std::vector<Weight> chosen(std::span<const Weight> weights) {
  std::vector<Weight> chosen;
  std::unordered_set<const std::byte*> seen;
  for (const Weight& w : weights)
    if (!w.empty() && gemm::repack_layout(w.dtype).columns > 0 && seen.insert(w.data).second) chosen.push_back(w);
  return chosen;
}

}  // namespace

int64_t gemm::repacked_group_bytes(DType type, int64_t cols) {
  const RepackLayout layout = repack_layout(type);
  return (cols + layout.columns - 1) / layout.columns * layout.words() * kGroupRows * 4;
}

gemm::Prefetch gemm::prefetch_of(const Weight& w, int64_t expert, int64_t row, int64_t panels) {
  if (w.repacked == nullptr) {
    const std::byte* const first = w.row(row, expert);
    const int64_t bytes = kGroupRows * w.row_bytes();
    return {{first, first + bytes}, w.row_bytes(), std::min(2 * panels, groups_of(w) - row / kGroupRows), 2 * bytes};
  }
  const int64_t bytes = repacked_group_bytes(w.dtype, w.cols);
  const std::byte* const first = repacked_group(w, expert, row, bytes);
  return {{first, first + bytes}, 0, std::min(2 * panels, groups_of(w) - row / kGroupRows), 2 * bytes};
}

gemm::Prefetch gemm::prefetch_of(const Weight& gate, const Weight& up, int64_t expert, int64_t row, int64_t units) {
  if (gate.repacked == nullptr || up.repacked == nullptr)
    return {{gate.row(row, expert), up.row(row, expert)},
            gate.row_bytes(),
            2 * std::min(units, groups_of(gate) - row / kGroupRows),
            kGroupRows * gate.row_bytes()};
  const int64_t bytes = repacked_group_bytes(gate.dtype, gate.cols);
  return {{repacked_group(gate, expert, row, bytes),
           repacked_group(up, expert, row, repacked_group_bytes(up.dtype, up.cols))},
          0,
          2 * std::min(units, groups_of(gate) - row / kGroupRows),
          bytes};
}

Weight gemm::as_read(const Core& core, Weight w) {
  if (!core.reads_repacked) w.repacked = nullptr;
  return w;
}

void RepackedWeights::Unmap::operator()(std::byte* p) const {
  munmap(p, bytes);
}

int64_t RepackedWeights::bytes_for(std::span<const Weight> weights) {
  int64_t bytes = 0;
  for (const Weight& w : chosen(weights)) bytes += copy_bytes(w);
  return bytes;
}

Result<std::unique_ptr<RepackedWeights>> RepackedWeights::create(std::span<const Weight> weights, ThreadPool& pool) {
  auto all = std::make_unique<RepackedWeights>();
  const auto bytes = static_cast<size_t>(bytes_for(weights));
  if (bytes == 0) return all;
  void* const map = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED)
    return capacity_error("cannot reserve {} MiB for repacked weights ({})", bytes >> 20, std::strerror(errno));
  madvise(map, bytes, MADV_HUGEPAGE);
  all->memory_ = {static_cast<std::byte*>(map), Unmap{bytes}};
  std::byte* to = all->memory_.get();
  for (Weight w : chosen(weights)) {
    const int64_t groups = groups_of(w), group_bytes = gemm::repacked_group_bytes(w.dtype, w.cols);
    const int64_t grain = std::max<int64_t>(1, (int64_t{2} << 20) / group_bytes);  // about a huge page
    pool.parallel_for(w.experts * groups, grain, [&](int64_t begin, int64_t end, int) {
      for (int64_t g = begin; g < end; ++g)
        gemm::repack_group(w, g / groups, g % groups * gemm::kGroupRows, to + g * group_bytes);
    });
    w.repacked = to;
    all->copies_.emplace(w.data, w);
    to += copy_bytes(w);
  }
  return all;
}

Weight RepackedWeights::find(Weight w) const {
  const auto it = copies_.find(w.data);
  if (it == copies_.end()) return w;
  const Weight& c = it->second;
  if (c.dtype == w.dtype && c.rows == w.rows && c.cols == w.cols && c.experts == w.experts &&
      c.row(0, c.experts - 1) == w.row(0, w.experts - 1))
    w.repacked = c.repacked;
  return w;
}

}  // namespace quire
