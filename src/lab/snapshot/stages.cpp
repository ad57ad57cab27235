#include "lab/snapshot/stages.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>

#include "core/output.h"
#include "engine/cuda_device.h"
#include "engine/options.h"

namespace quire::cli::snapshot {
namespace {

constexpr std::chrono::milliseconds kInterval{250};
constexpr size_t kMostSamples = 2000;  // then every other one goes

}  // namespace

int64_t resident_bytes() {
  int64_t size = 0, resident = 0;
  std::ifstream in("/proc/self/statm");
  return in >> size >> resident ? resident * sysconf(_SC_PAGESIZE) : 0;
}

std::string said_seconds(double seconds) {
  const auto s = static_cast<int64_t>(std::ceil(std::min(seconds, 1e9)));
  return s < 100 ? fmt::format("{} s", s) : fmt::format("{}:{:02} min", s / 60, s % 60);
}

Stages::Stages(std::vector<Stage> plan, int gpu) : plan_(std::move(plan)), gpu_(gpu) {
  watcher_ = std::thread([this] { watch(); });
}

Stages::~Stages() {
  stop();
}

void Stages::begin(const std::string& name) {
  const auto found = std::find_if(plan_.begin(), plan_.end(), [&](const Stage& s) { return s.name == name; });
  QUIRE_CHECK(found != plan_.end(), "no stage {}", name);
  at_ = static_cast<size_t>(found - plan_.begin());
  double left = 0;
  for (size_t i = at_; i < plan_.size(); ++i) left += plan_[i].seconds;
  tell_line(fmt::format("{} of {}: {}; about {} left", at_ + 1, plan_.size(), name, said_seconds(left)));
  const std::lock_guard lock(mutex_);
  stage_ = name;
  sample();
}

void Stages::expect(const std::string& name, double seconds) {
  for (Stage& s : plan_)
    if (s.name == name) s.seconds = seconds;
}

double Stages::seconds() const {
  return std::chrono::duration<double>(Clock::now() - start_).count();
}

// With the mutex held.
void Stages::sample() {
  MemorySample m{.seconds = seconds(), .stage = stage_, .resident = resident_bytes()};
  if (gpu_ >= 0)
    if (const Result<GpuMemory> used = gpu_memory(0); used.ok()) m.gpu_used = used->used;
  memory_.push_back(std::move(m));
  if (memory_.size() < kMostSamples) return;
  for (size_t i = 0; i < memory_.size() / 2; ++i) memory_[i] = std::move(memory_[2 * i]);
  memory_.resize(memory_.size() / 2);
}

void Stages::watch() {
  if (gpu_ >= 0) (void)open_gpu(gpu_);  // which becomes this thread's
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, kInterval, [this] { return stop_; })) sample();
}

void Stages::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  if (watcher_.joinable()) watcher_.join();
}

std::vector<MemorySample> Stages::take_memory() {
  stop();
  return std::move(memory_);
}

}  // namespace quire::cli::snapshot
