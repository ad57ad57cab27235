#include "engine/gpu_step_log.h"

#include <algorithm>

namespace quire {

void GpuStepLog::Logger::begin(const Launch& l) {
  if (depth_++ > 0) return;  // a part of the one before
  step_.launches.push_back({std::string(l.op), std::string(l.kernel), l.traffic, -launched_()});
}

void GpuStepLog::Logger::end() {
  if (--depth_ == 0) step_.launches.back().kernels += launched_();
}

LoggedStep GpuStepLog::Logger::take(bool prompts) {
  step_.prompts = prompts;
  return std::exchange(step_, {});
}

void GpuStepLog::computed(bool prompts) {
  if (to_ != nullptr) to_->add(std::make_shared<const LoggedStep>(logger_.take(prompts)));
}

void GpuStepLog::captured(const GraphSize& size) {
  if (to_ != nullptr) graphs_[size] = logger_.take(false);
}

void GpuStepLog::replayed(const GraphSize& size, const std::function<void()>& choose) {
  if (to_ == nullptr) return;
  LoggedStep step = graphs_.at(size);
  choose();
  const LoggedStep asked = logger_.take(false);
  for (size_t i = 0; i < std::min(step.launches.size(), asked.launches.size()); ++i)
    if (step.launches[i].op == asked.launches[i].op) step.launches[i].traffic = asked.launches[i].traffic;
  to_->add(std::make_shared<const LoggedStep>(std::move(step)));
}

}  // namespace quire
