#include "engine/device_link.h"

namespace quire {

Result<DeviceLink> DeviceLink::create(ComputeDevice& from, ComputeDevice& to, int slots, int64_t bytes,
                                      std::string_view what) {
  using Where = ComputeDevice::Where;
  DeviceLink link(from, to);
  const bool direct = from.reaches(to);
  for (int i = 0; i < slots; ++i) {
    QUIRE_TRY(DeviceMemory slot,
              direct ? to.allocate(Where::kOwn, bytes, what) : from.allocate(Where::kHost, bytes, what));
    link.slots_.push_back(std::move(slot));
  }
  return Result<DeviceLink>(std::move(link));
}

void DeviceLink::send(int slot, const std::byte* data, int64_t bytes, ComputeDevice::Fence sent) {
  from_->copy(slots_[static_cast<size_t>(slot)].data(), data, bytes, "passing rows on to the next device");
  from_->mark(sent);
}

void DeviceLink::receive(int slot, std::byte* data, int64_t bytes, ComputeDevice::Fence sent) {
  to_->wait_for(*from_, sent);
  to_->copy(data, slots_[static_cast<size_t>(slot)].data(), bytes, "taking rows from the device before");
}

}  // namespace quire
