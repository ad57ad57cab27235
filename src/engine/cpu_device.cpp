#include "engine/cpu_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/memory.h"

namespace quire {
namespace {

// Gives weights their copies in the integer core's order.
class UseCopies final : public WeightPlacer {
 public:
  explicit UseCopies(const RepackedWeights& copies) : copies_(copies) {}
  void matrix(Weight& w) override { w = copies_.find(w); }
  void table(Weight&) override {}
  void vector(Tensor&) override {}

 private:
  const RepackedWeights& copies_;
};

double mib(int64_t bytes) {
  return static_cast<double>(bytes) / (1 << 20);
}

void unmap(std::span<std::byte> bytes) {
  munmap(bytes.data(), bytes.size());
}

template <class... F>
struct Visitor : F... {
  using F::operator()...;
};

}  // namespace

CpuDevice::CpuDevice(std::shared_ptr<const LoadedModel> model, const EnginePlan& plan)
    : model_(std::move(model)), plan_(plan), forced_(plan.kernels), pool_(plan.threads) {}

CpuDevice::~CpuDevice() {
  CpuDevice::stop();
}

// Addresses, which are backed by memory of zeros as they are first written.
Result<DeviceMemory> CpuDevice::allocate(Where where, int64_t bytes, std::string_view what) {
  constexpr int64_t kPage = 4096, kHugePage = int64_t{2} << 20;
  const int64_t page = where == Where::kScratch ? kHugePage : kPage;
  const auto size = static_cast<size_t>((std::max<int64_t>(bytes, 1) + page - 1) / page * page);
  void* const at = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED)
    return capacity_error("cannot reserve {:.0f} MiB for {} ({}); use fewer sequences, or a shorter --context",
                          mib(bytes), what, std::strerror(errno));
  // Scratch memory is walked at full speed; this is advice only.
  if (where == Where::kScratch) madvise(at, size, MADV_HUGEPAGE);
  return DeviceMemory({static_cast<std::byte*>(at), size}, unmap);
}

int64_t CpuDevice::resident_bytes(const DeviceMemory& memory) const {
  return resident_memory(memory.span());
}

Status CpuDevice::place(int64_t beside) {
  if (plan_.repack && plan_.for_latency() && plan_.device == Device::kCpu) repacked_ = model_->repacked(pool_, beside);
  const bool drafts = plan_.mtp && plan_.is_last_stage();
  placed_ = model_->model->decoder().part(plan_.own_layers(model_->model->config()), drafts);
  if (repacked_ != nullptr) {
    UseCopies use(*repacked_);
    placed_ = placed_->placed(use);
  }
  if (!drafts) return {};
  QUIRE_TRY(const MtpBlock* const block, model_->mtp());
  mtp_ = mtp_decoder(*placed_, block->weights, kDraftedTokens);
  return {};
}

StepDecoders CpuDevice::decoders() const {
  return {*placed_, mtp_ ? &*mtp_ : nullptr};
}

ForwardOptions CpuDevice::forward_options(bool dry) const {
  return {.latency = plan_.for_latency(),
          .prompts = token_rounding(plan_.activations),
          .probe = plan_.probe && !dry ? &plan_.probe : nullptr};
}

OpContext CpuDevice::context(Workspace& workspace) {
  return {.pool = pool_,
          .workspace = workspace,
          .machine = {plan_.device},
          .choice = &plan_.kernels,
          .forced = pool_.dry() ? nullptr : &forced_};
}

Result<int64_t> CpuDevice::measure(const StepShape& shape) {
  return measure([&](const OpContext& ctx) { compute()(ctx, shape, StepPart::kAll); });
}

Result<int64_t> CpuDevice::measure(const Call& work) {
  Workspace all;
  pool_.set_dry(true);
  work(context(all));
  pool_.set_dry(false);
  return all.high_water();
}

Status CpuDevice::check_scratch(const StepCapacity& c, int64_t bytes) const {
  const int64_t available = available_memory();
  if (bytes <= available) return {};
  return capacity_error(
      "steps of {} tokens for {} sequences take {:.0f} MiB of scratch memory, and {:.0f} MiB are available; use "
      "fewer --batch-tokens or sequences",
      c.rows, c.segments, mib(bytes), mib(available));
}

std::string CpuDevice::start(const StepCapacity&) {
  leave();
  thread_ = std::thread([this] { work(); });
  return {};
}

void CpuDevice::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void CpuDevice::enqueue(Work work) {
  const std::lock_guard lock(mutex_);
  QUIRE_CHECK(queued_ < queue_.size(), "more than {} pieces of work are enqueued", queue_.size());
  queue_[(first_ + queued_++) % queue_.size()] = std::move(work);
  changed_.notify_all();
}

void CpuDevice::copy(std::byte* to, const std::byte* from, int64_t bytes, std::string_view) {
  enqueue(Copy{to, from, bytes});
}

void CpuDevice::move(std::span<const DeviceMove> moves, std::optional<Fence>) {
  enqueue(moves);
}

void CpuDevice::run(const StepShape& shape, const StepShape&, StepPart part) {
  enqueue(Run{shape, part});
}

void CpuDevice::mark(Fence fence) {
  {
    const std::lock_guard lock(mutex_);
    ++marks_[static_cast<size_t>(fence)].enqueued;
  }
  enqueue(fence);
}

void CpuDevice::wait_for(ComputeDevice& other, Fence fence) {
  auto& cpu = dynamic_cast<CpuDevice&>(other);
  enqueue(Wait{&cpu, fence, cpu.times_marked(fence)});
}

int64_t CpuDevice::times_marked(Fence fence) const {
  const std::lock_guard lock(mutex_);
  return marks_[static_cast<size_t>(fence)].enqueued;
}

// One that stops passes no more fences.
void CpuDevice::await(Fence fence, int64_t times) {
  std::unique_lock lock(mutex_);
  const Mark& m = marks_[static_cast<size_t>(fence)];
  changed_.wait(lock, [&] { return stopping_ || m.passed >= times; });
}

void CpuDevice::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || queued_ > 0; });
    if (stopping_) return;
    const Work next = queue_[first_];
    lock.unlock();
    carry_out(next);
    lock.lock();
    if (const Fence* const fence = std::get_if<Fence>(&next)) {
      Mark& m = marks_[static_cast<size_t>(*fence)];
      ++m.passed;
      m.at = std::chrono::steady_clock::now();
    }
    first_ = (first_ + 1) % queue_.size();
    --queued_;
    changed_.notify_all();
  }
}

void CpuDevice::carry_out(const Work& work) {
  const Visitor carry{
      [](const Copy& c) { std::memcpy(c.to, c.from, static_cast<size_t>(c.bytes)); },
      [](const Moves& moves) {
        for (const DeviceMove& m : moves)
          std::memcpy(m.out ? m.host : m.device, m.out ? m.device : m.host, static_cast<size_t>(m.bytes));
      },
      [this](const Run& r) { compute()(context(*workspace_), r.shape, r.part); },
      [](Fence) {},
      [](const Wait& w) { w.other->await(w.fence, w.times); },
      [this](const Call* call) { (*call)(context(*workspace_)); },
  };
  enter();
  std::visit(carry, work);
  leave();
}

Status CpuDevice::wait(Fence fence, std::string_view) {
  std::unique_lock lock(mutex_);
  const Mark& m = marks_[static_cast<size_t>(fence)];
  QUIRE_CHECK(m.enqueued > 0, "fence {} was never enqueued", fence);
  changed_.wait(lock, [&] { return m.passed == m.enqueued; });
  return {};
}

Result<double> CpuDevice::seconds(Fence begin, Fence end) {
  const std::lock_guard lock(mutex_);
  const Mark &from = marks_[static_cast<size_t>(begin)], &to = marks_[static_cast<size_t>(end)];
  return std::chrono::duration<double>(to.at - from.at).count();
}

bool CpuDevice::idle() {
  const std::lock_guard lock(mutex_);
  return queued_ == 0;
}

Status CpuDevice::read(std::span<std::byte> to, std::span<const std::byte* const> from) {
  enter();
  const size_t each = from.empty() ? 0 : to.size() / from.size();
  for (size_t i = 0; i < from.size(); ++i) std::memcpy(to.data() + i * each, from[i], each);
  leave();
  return {};
}

Status CpuDevice::write(std::span<std::byte* const> to, std::span<const std::byte> from) {
  enter();
  const size_t each = to.empty() ? 0 : from.size() / to.size();
  for (size_t i = 0; i < to.size(); ++i) std::memcpy(to[i], from.data() + i * each, each);
  leave();
  return {};
}

std::vector<ForcedCount> CpuDevice::forced() const {
  return {forced_.all().begin(), forced_.all().end()};
}

}  // namespace quire
