// What a backend allocates beside what its stages have, and their caches as one.
#include <algorithm>

#include "engine/step_backend.h"

namespace quire {

using Where = ComputeDevice::Where;

Result<std::unique_ptr<StepBackend>> StepBackend::create(const std::shared_ptr<const LoadedModel>& model,
                                                         const EnginePlan& plan,
                                                         std::vector<std::unique_ptr<ComputeDevice>> devices) {
  std::unique_ptr<StepBackend> b(new StepBackend(model, plan, std::move(devices)));
  QUIRE_CHECKED(b->allocate());
  return b;
}

Result<std::unique_ptr<StepBackend>> StepBackend::create(const std::shared_ptr<const LoadedModel>& model,
                                                         const EnginePlan& plan,
                                                         std::unique_ptr<ComputeDevice> device) {
  std::vector<std::unique_ptr<ComputeDevice>> devices;
  devices.push_back(std::move(device));
  return create(model, plan, std::move(devices));
}

Result<int64_t> StepBackend::step_bytes(const std::shared_ptr<const LoadedModel>& model, const EnginePlan& plan,
                                        std::unique_ptr<ComputeDevice> device) {
  const StepLayout layout(plan.step_capacity(model->model->config()));
  StepStage stage(model, plan, layout, std::move(device));
  Result<int64_t> bytes = stage.step_bytes();
  stage.device().stop();
  return bytes;
}

Status StepBackend::allocate() {
  for (int i = 0; i < plan_.step_buffers(); ++i) {
    Buffer& b = buffers_[i];
    QUIRE_TRY(b.staging, first().device().allocate(Where::kHost, layout_.bytes(), "the arrays of a step"));
    QUIRE_TRY(b.results, last().device().allocate(Where::kHost, result_layout_.bytes(), "the results of a step"));
  }
  for (const auto& stage : stages_) QUIRE_CHECKED(stage->prepare());
  QUIRE_CHECKED(link_stages());
  QUIRE_CHECKED(allocate_caches());
  for (const auto& stage : stages_) stage->start();
  return {};
}

Status StepBackend::link_stages() {
  if (!several()) return {};
  const StepCapacity& c = layout_.capacity();
  const int slots = plan_.step_buffers();
  for (size_t i = 0; i + 1 < stages_.size(); ++i) {
    QUIRE_TRY(DeviceLink link, DeviceLink::create(stages_[i]->device(), stages_[i + 1]->device(), slots,
                                                  stages_[i]->stream_bytes(c.rows), "rows between devices"));
    rows_.push_back(std::move(link));
  }
  QUIRE_TRY(DeviceLink link,
            DeviceLink::create(last().device(), first().device(), slots, c.sampled() * int64_t{4}, "sampled tokens"));
  tokens_.emplace(std::move(link));
  return {};
}

// As many units of each pool as every stage that keeps something in it has room for.
Status StepBackend::allocate_caches() {
  const ModelConfig& model = model_->model->config();
  const std::optional<CachePools> pools = plan_.cache_shape(model).pools();
  if (!pools) return capacity_error("the caches of this model are larger than any memory");
  pools_ = *pools;
  counts_ = plan_.wanted_units(pools_);
  int64_t page_bytes = 0;
  for (const auto& stage : stages_) {
    QUIRE_TRY(const PoolCounts counts, stage->room());
    const CachePools& own = stage->pools();
    for (size_t i = 0; i < own.size(); ++i)
      if (own[i].bytes > 0) counts_[i] = std::min(counts_[i], counts[i]);
    page_bytes += stage->page_bytes();
  }
  host_pages_ = host_pages_of(plan_, page_bytes);
  for (const auto& stage : stages_) QUIRE_CHECKED(stage->allocate_caches(counts_, host_pages_.all()));
  return {};
}

// f(stage, unit, part of `all`) for all that stages have of these units, or of what lies in these pages. A unit's bytes
// are those of its layers in their order, so each stage has a piece of it; and of a state each stage's piece is cut
// into pages by itself.
template <class Byte, class F>
Status StepBackend::each_piece(int pool, std::span<const int32_t> units, std::span<Byte> all, F&& f) const {
  const int of = is_on_host(pool) ? on_host(pool) : pool;
  const auto whole = static_cast<size_t>(pools_[static_cast<size_t>(of)].bytes);
  const bool in_pages = is_on_host(pool) && of == state_pool(pools_);
  size_t offset = 0;
  for (const auto& stage : stages_) {
    const CachePools& own = stage->pools();
    const auto bytes =
                   static_cast<size_t>(static_cast<size_t>(of) < own.size() ? own[static_cast<size_t>(of)].bytes : 0),
               page = static_cast<size_t>(stage->page_bytes());
    for (size_t i = 0; i < units.size() && bytes > 0; ++i) {
      if (units[i] < 0) continue;
      const size_t begin = in_pages ? std::min(i * page, bytes) : 0, at = offset + (in_pages ? begin : i * whole),
                   end = in_pages ? offset + bytes : at + bytes;
      const size_t count = std::min(in_pages ? page : bytes, std::min(end, all.size()) - std::min(at, all.size()));
      if (count > 0) QUIRE_CHECKED(f(*stage, units[i], all.subspan(at, count)));
    }
    offset += bytes;
  }
  return {};
}

Status StepBackend::read(int pool, std::span<const int32_t> units, std::span<std::byte> to) {
  return each_piece(pool, units, to, [&](StepStage& stage, int32_t unit, std::span<std::byte> part) {
    return stage.read(pool, unit, part);
  });
}

Status StepBackend::write(int pool, std::span<const int32_t> units, std::span<const std::byte> from) {
  return each_piece(pool, units, from, [&](StepStage& stage, int32_t unit, std::span<const std::byte> part) {
    return stage.write(pool, unit, part);
  });
}

BackendMemory StepBackend::memory() const {
  BackendMemory sum;
  for (const auto& stage : stages_) {
    const BackendMemory m = stage->memory();
    // Copies of weights on a CPU are one for all of its devices.
    sum.repacked = first().device().is_host() ? m.repacked : sum.repacked + m.repacked;
    sum.kv_and_state += m.kv_and_state;
    sum.workspace += m.workspace;
  }
  return sum;
}

// Of devices that differ, which layers each has.
std::string StepBackend::numerics() const {
  const auto of = [&](const StepStage& stage) { return numerics_of(stage.device().machine(), plan_.kernels); };
  std::string text = of(first());
  if (std::ranges::all_of(stages_, [&](const auto& s) { return of(*s) == text; })) return text;
  text.clear();
  for (int i = 0; i < plan_.stage_count(); ++i) {
    const LayerRange& layers = plan_.stages[static_cast<size_t>(i)].layers;
    text +=
        fmt::format("{}{} [{}, {})", i == 0 ? "" : " ", of(*stages_[static_cast<size_t>(i)]), layers.first, layers.end);
  }
  return text;
}

std::vector<ForcedCount> StepBackend::forced() const {
  std::vector<ForcedCount> all;
  for (const auto& stage : stages_) {
    for (const ForcedCount& c : stage->device().forced()) {
      const auto same = std::ranges::find_if(all, [&](const ForcedCount& o) { return o.op == c.op; });
      if (same == all.end())
        all.push_back(c);
      else
        same->ran += c.ran, same->replaced += c.replaced;
    }
  }
  return all;
}

}  // namespace quire
