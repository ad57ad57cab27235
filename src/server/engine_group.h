// The engines that serve one model side by side (--data-parallel-size), as one service. Each request goes to one of
// them (placement.h), and stays there. An engine that has lost its device takes its requests along, with an error; the
// others go on.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "server/engine_service.h"
#include "server/placement.h"

namespace quire::server {

class EngineGroup : public Service {
 public:
  // At least one.
  explicit EngineGroup(std::vector<std::unique_ptr<EngineService>> engines);

  ApiResult<std::vector<JobId>> submit(std::vector<Job> jobs, EventSink sink) override;
  void cancel(std::span<const JobId> jobs) override;
  // An error where no engine answers any more.
  ApiStatus health() const override;
  std::vector<int> lost_engines() const override;
  void stop() override;

  size_t size() const { return engines_.size(); }
  EngineService& operator[](size_t i) { return *engines_[i]; }
  const EngineService& operator[](size_t i) const { return *engines_[i]; }

 private:
  std::vector<EngineOffer> offers(const PrefixHashes& prompt);
  JobId name(size_t engine, JobId job) const { return job * static_cast<JobId>(size()) + static_cast<JobId>(engine); }

  std::vector<std::unique_ptr<EngineService>> engines_;
  int64_t slack_;
  SentPrefixes sent_;
  std::atomic<unsigned> turn_{0};
};

}  // namespace quire::server
