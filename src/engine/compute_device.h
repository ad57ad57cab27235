// What computes steps: memory, and a queue of work that is carried out in order. The CPU is one, and so is a GPU. What
// a step is made of, when it is copied and what comes back is written once over them (engine/step_backend.h).
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cache/storage.h"
#include "engine/compute_step.h"
#include "engine/device_moves.h"
#include "engine/loaded_model.h"
#include "engine/plan.h"

namespace quire {

// Memory of a device, or of the host, owned.
class DeviceMemory {
 public:
  using Free = void (*)(std::span<std::byte> bytes);
  DeviceMemory() = default;
  DeviceMemory(std::span<std::byte> bytes, Free free) : bytes_(bytes), free_(free) {}
  DeviceMemory(DeviceMemory&& o) noexcept { *this = std::move(o); }
  DeviceMemory& operator=(DeviceMemory&& o) noexcept {
    std::swap(bytes_, o.bytes_);
    std::swap(free_, o.free_);
    return *this;
  }
  ~DeviceMemory() {
    if (free_ != nullptr) free_(bytes_);
  }
  std::byte* data() const { return bytes_.data(); }
  std::span<std::byte> span() const { return bytes_; }
  int64_t bytes() const { return std::ssize(bytes_); }

 private:
  std::span<std::byte> bytes_;
  Free free_ = nullptr;
};

// What caches may take of a device that has no more than it has.
struct DeviceRoom {
  GpuMemory memory;
  int64_t bytes = 0;
};

// Calls are one thread's, but for wait(), which may be another's.
class ComputeDevice {
 public:
  // Enqueues or computes a step of this shape, or a part of it: the backend's, called by the device.
  using Compute = std::function<void(const OpContext& ctx, const StepShape& shape, StepPart part)>;
  // Enqueues or computes what is no step.
  using Call = std::function<void(const OpContext& ctx)>;
  // A place in the queue that can be waited for. They are numbered, and used again.
  using Fence = int;
  static constexpr int kFences = 80;

  virtual ~ComputeDevice() = default;

  // Before anything else.
  void set_compute(Compute compute) { compute_ = std::move(compute); }
  virtual Machine machine() const = 0;
  // Whether the host can read and write its memory as its own.
  virtual bool is_host() const = 0;

  // kOwn is the device's and holds zeros; kScratch is the same, not cleared; kHost is the host's memory, which copies
  // to and from the device reach at full speed. An error says what it was for: `what`.
  enum class Where : uint8_t { kOwn, kScratch, kHost };
  virtual Result<DeviceMemory> allocate(Where where, int64_t bytes, std::string_view what) = 0;
  // How much of a kOwn memory there really is.
  virtual int64_t resident_bytes(const DeviceMemory& memory) const { return memory.bytes(); }
  // Brings the weights to where steps read them. Caches will take `beside` bytes.
  virtual Status place(int64_t beside) = 0;
  virtual StepDecoders decoders() const = 0;
  // The vision tower, where the model has one and this device computes it; else null.
  virtual const VisionTower* tower() const { return nullptr; }
  virtual int64_t weight_bytes() const = 0;  // of copies: what was mapped is none
  virtual ForwardOptions forward_options(bool dry) const = 0;

  // How much scratch memory a step takes, found by a pass that computes nothing. On a device that is the host's, its
  // arrays have been filled.
  virtual Result<int64_t> measure(const StepShape& shape) = 0;
  virtual Result<int64_t> measure(const Call& work) = 0;  // the same
  // An error if so much scratch memory cannot be had.
  virtual Status check_scratch(const StepCapacity&, int64_t /*bytes*/) const { return {}; }
  virtual void set_scratch(std::span<std::byte> memory) = 0;
  // What follows is asked of devices that are not the host's. What they themselves take for steps of such a capacity:
  virtual int64_t overhead_bytes(const StepCapacity&) const { return 0; }
  // Goes through these steps without computing them: an error where something in them cannot be computed.
  virtual Status rehearse(std::span<const StepShape>) { return {}; }
  // What is left for caches, once all else is allocated. The host's are as large as the plan says.
  virtual Result<DeviceRoom> room(const StepCapacity&) { return DeviceRoom{}; }

  // All memory is allocated: from here on what is enqueued, read() and write() touch it, and nothing else. Prepares
  // steps that come again and again; says what it made.
  virtual std::string start(const StepCapacity&) = 0;

  // Enqueued, and carried out in this order.
  virtual void copy(std::byte* to, const std::byte* from, int64_t bytes, std::string_view what) = 0;
  // The list must last until it is carried out. `before`: what marked the end of the step before, where one may be
  // under way.
  virtual void move(std::span<const DeviceMove> moves, std::optional<Fence> before) = 0;
  // `padded`: the step with the padding of pad_step(), where it may be one that was captured (replayable()).
  virtual void run(const StepShape& shape, const StepShape& padded, StepPart part) = 0;
  virtual void call(const Call& work) = 0;  // it must last until it is carried out
  virtual void mark(Fence fence) = 0;
  // What follows waits for what `other`, a device of the same kind, has marked with its fence so far.
  virtual void wait_for(ComputeDevice& other, Fence fence) = 0;
  // Whether its copies reach the own memory of `other`, a device of the same kind, without the host's. While nothing is
  // under way.
  virtual bool reaches(ComputeDevice& other) = 0;
  // Whether steps of generated tokens are rounded up to few sizes, because those are captured.
  virtual bool replays() const { return false; }

  // The first thing that went wrong since the last call.
  virtual Status enqueued() { return {}; }
  virtual Status wait(Fence fence, std::string_view what) = 0;
  virtual Result<double> seconds(Fence begin, Fence end) = 0;  // both were waited for, or passed
  virtual bool idle() = 0;                                     // nothing is under way
  // Whether it still computes, after an error.
  virtual bool is_sound() { return true; }
  // What was enqueued has ended or never begins, also where it waits for another device. Nothing is enqueued after it,
  // and memory that no other device uses may be freed.
  virtual void stop() = 0;

  // While nothing is under way: from and to memory of the device, `from` and `to` as many pieces of one size.
  virtual Status read(std::span<std::byte> to, std::span<const std::byte* const> from) = 0;
  virtual Status write(std::span<std::byte* const> to, std::span<const std::byte> from) = 0;

  virtual std::vector<ForcedCount> forced() const = 0;

 protected:
  const Compute& compute() const { return compute_; }

 private:
  Compute compute_;
};

// The device of the plan. Errors: there is none, or it cannot have such a model.
Result<std::unique_ptr<ComputeDevice>> make_device(const std::shared_ptr<const LoadedModel>& model,
                                                   const EnginePlan& plan);

}  // namespace quire
