// From one device to another: what steps leave on the first one for the second. Memory of its own for each step in
// flight lies between them, on the second one where the first reaches it, else with the host, so that neither waits
// for the other but for what it needs.
#pragma once

#include <vector>

#include "engine/compute_device.h"

namespace quire {

class DeviceLink {
 public:
  // Both devices outlive it. `slots`: one for each buffer of the backend, of so many bytes.
  static Result<DeviceLink> create(ComputeDevice& from, ComputeDevice& to, int slots, int64_t bytes,
                                   std::string_view what);

  // Enqueued on the first device: these bytes into a slot, which `sent` marks then, a fence of its own. What the slot
  // held was received.
  void send(int slot, const std::byte* data, int64_t bytes, ComputeDevice::Fence sent);
  // Enqueued on the second device, behind that.
  void receive(int slot, std::byte* data, int64_t bytes, ComputeDevice::Fence sent);

 private:
  DeviceLink(ComputeDevice& from, ComputeDevice& to) : from_(&from), to_(&to) {}

  ComputeDevice *from_, *to_;
  std::vector<DeviceMemory> slots_;
};

}  // namespace quire
