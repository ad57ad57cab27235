#include "support/protected_backend.h"

#include <sys/mman.h>

#include "engine/cpu_backend.h"

namespace quire::test {
namespace {

class ProtectedBackend final : public CpuBackend {
 public:
  static Result<std::unique_ptr<Backend>> create(const std::shared_ptr<const LoadedModel>& model,
                                                 const EngineOptions& options) {
    QUIRE_TRY(CacheStorage storage, create_caches(*model->model, options));
    std::unique_ptr<ProtectedBackend> b(new ProtectedBackend(model, options, std::move(storage)));
    QUIRE_CHECKED(b->allocate());
    b->start();
    return std::unique_ptr<Backend>(std::move(b));
  }
  ~ProtectedBackend() override {
    stop();
    protect(PROT_READ | PROT_WRITE);
  }
  const std::byte* first_byte() const { return regions().front().data(); }

 private:
  ProtectedBackend(std::shared_ptr<const LoadedModel> model, const EngineOptions& options, CacheStorage storage)
      : CpuBackend(std::move(model), options, std::move(storage)) {}
  void enter() override { protect(PROT_READ | PROT_WRITE); }
  void leave() override { protect(PROT_NONE); }
  void protect(int how) const {
    for (const std::span<std::byte> r : regions())
      QUIRE_CHECK(mprotect(r.data(), r.size(), how) == 0, "mprotect of {} bytes failed", r.size());
  }
};

}  // namespace

Result<std::unique_ptr<Backend>> make_protected_backend(const std::shared_ptr<const LoadedModel>& model,
                                                        const EngineOptions& options) {
  return ProtectedBackend::create(model, options);
}

void read_protected(Backend& backend) {
  const volatile std::byte* const at = dynamic_cast<ProtectedBackend&>(backend).first_byte();
  (void)*at;
}

}  // namespace quire::test
