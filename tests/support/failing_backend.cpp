#include "support/failing_backend.h"

#include <optional>

namespace quire::test {
namespace {

class FailingBackend final : public Backend {
 public:
  FailingBackend(Loss loss, std::unique_ptr<Backend> real) : loss_(std::move(loss)), real_(std::move(real)) {}

  const StepLayout& layout() const override { return real_->layout(); }
  const CachePools& pools() const override { return real_->pools(); }
  const PoolCounts& units() const override { return real_->units(); }
  HostPages host_pages() const override { return real_->host_pages(); }
  std::byte* staging(int buffer) override { return real_->staging(buffer); }
  void submit(int buffer, const StepShape& shape, const EncoderSlice& encode) override {
    QUIRE_CHECK(!lost_, "a step is submitted to a device that is known to be lost");
    real_->submit(buffer, shape, encode);
  }
  bool masks_written(int buffer) override {
    if (loss_.before_masks) loss_.before_masks();
    return real_->masks_written(buffer);
  }
  Result<Tensor> await_drafts(int buffer) override { return real_->await_drafts(buffer); }
  Result<StepResults> wait(int buffer) override {
    if (waits_++ == loss_.step) {
      const std::optional<Error> error = loss_.error();
      if (loss_.lasting) lost_ = error;
      if (error && !loss_.lasting) {
        QUIRE_CHECKED(real_->wait(buffer));
        return *error;
      }
    }
    if (lost_) return *lost_;
    return real_->wait(buffer);
  }
  bool lost() const override { return lost_.has_value() || real_->lost(); }
  Status read(int pool, std::span<const int32_t> units, std::span<std::byte> to) override {
    return lost_ ? Status(*lost_) : real_->read(pool, units, to);
  }
  Status write(int pool, std::span<const int32_t> units, std::span<const std::byte> from) override {
    return lost_ ? Status(*lost_) : real_->write(pool, units, from);
  }
  BackendMemory memory() const override { return real_->memory(); }
  std::string numerics() const override { return real_->numerics(); }
  std::vector<ForcedCount> forced() const override { return real_->forced(); }

 private:
  Loss loss_;
  std::unique_ptr<Backend> real_;
  int waits_ = 0;
  std::optional<Error> lost_;
};

}  // namespace

BackendFactory failing_backend(Loss loss, BackendFactory make) {
  return [loss = std::move(loss), make = std::move(make)](const std::shared_ptr<const LoadedModel>& model,
                                                          const EnginePlan& plan) -> Result<std::unique_ptr<Backend>> {
    QUIRE_TRY(std::unique_ptr<Backend> real, make(model, plan));
    return std::unique_ptr<Backend>(std::make_unique<FailingBackend>(loss, std::move(real)));
  };
}

}  // namespace quire::test
