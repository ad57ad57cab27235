#include "support/protected_backend.h"

#include <sys/mman.h>

#include "engine/cpu_device.h"
#include "engine/step_backend.h"

namespace quire::test {
namespace {

// The CPU, whose own memory is there only while something is carried out.
class ProtectedDevice final : public CpuDevice {
 public:
  using CpuDevice::CpuDevice;
  Result<DeviceMemory> allocate(Where where, int64_t bytes, std::string_view what) override {
    QUIRE_TRY(DeviceMemory memory, CpuDevice::allocate(where, bytes, what));
    if (where != Where::kHost) regions_.push_back(memory.span());
    return Result<DeviceMemory>(std::move(memory));
  }
  std::string start(const StepCapacity& capacity) override {
    started_ = true;
    return CpuDevice::start(capacity);
  }
  const std::byte* first_byte() const { return regions_.front().data(); }

 private:
  void enter() override { protect(PROT_READ | PROT_WRITE); }
  void leave() override { protect(PROT_NONE); }
  void protect(int how) const {
    if (!started_) return;  // the backend itself fills what it has allocated
    for (const std::span<std::byte> r : regions_)
      QUIRE_CHECK(mprotect(r.data(), r.size(), how) == 0, "mprotect of {} bytes failed", r.size());
  }
  std::vector<std::span<std::byte>> regions_;
  bool started_ = false;
};

}  // namespace

Result<std::unique_ptr<Backend>> make_protected_backend(const std::shared_ptr<const LoadedModel>& model,
                                                        const EnginePlan& options) {
  const auto make = [](const std::shared_ptr<const LoadedModel>& m,
                       const EnginePlan& o) -> Result<std::unique_ptr<ComputeDevice>> {
    return std::unique_ptr<ComputeDevice>(std::make_unique<ProtectedDevice>(m, o));
  };
  return backend_over(make)(model, options);
}

void read_protected(Backend& backend) {
  auto& device = dynamic_cast<ProtectedDevice&>(dynamic_cast<StepBackend&>(backend).device());
  const volatile std::byte* const at = device.first_byte();
  (void)*at;
}

}  // namespace quire::test
