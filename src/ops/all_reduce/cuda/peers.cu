#include "ops/all_reduce/cuda/peers.h"

#include <cuda_runtime.h>

namespace quire::cuda {
namespace {

// The calling thread's device becomes another one, and again what it was.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    if (cudaGetDevice(&before_) != cudaSuccess) before_ = -1;
    status_ = check(cudaSetDevice(device), "choosing a GPU");
  }
  ~OnDevice() {
    if (before_ >= 0) cudaSetDevice(before_);
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  const Status& status() const { return status_; }

 private:
  int before_ = -1;
  Status status_;
};

Result<Memory> zeros(int64_t bytes, std::string_view what) {
  QUIRE_TRY(Memory memory, Memory::create(Memory::Where::kDevice, bytes, what));
  QUIRE_CHECKED(check(cudaMemset(memory.data(), 0, static_cast<size_t>(bytes)), what));
  return Result<Memory>(std::move(memory));
}

// The current device reads the other's memory from here on.
Status enable(int device, int other) {
  int can = 0;
  QUIRE_CHECKED(check(cudaDeviceCanAccessPeer(&can, device, other), "asking for peer access"));
  if (can == 0)
    return request_error(
        "GPU {} cannot read the memory of GPU {}: use GPUs of one host that are connected by NVLink, or "
        "by PCIe with peer access",
        device, other);
  const cudaError_t code = cudaDeviceEnablePeerAccess(other, 0);
  if (code == cudaErrorPeerAccessAlreadyEnabled) {
    (void)cudaGetLastError();
    return {};
  }
  return check(code, "enabling peer access");
}

}  // namespace

RankLink::Places PeerLink::meet(std::byte* mine) {
  const std::ptrdiff_t at = mine - memory_[static_cast<size_t>(rank())];
  QUIRE_CHECK(at >= 0 && at < bytes_, "all_reduce: the partial result does not lie in the exchange memory");
  Places places{};
  for (size_t r = 0; r < static_cast<size_t>(of()); ++r) places[r] = memory_[r] + at;
  return places;
}

Result<std::unique_ptr<Peers>> Peers::create(std::span<const int> devices, int64_t exchange_bytes,
                                             double patience_seconds) {
  QUIRE_CHECK(!devices.empty() && std::ssize(devices) <= kMostPeers, "{} ranks, 1 to {} are possible", devices.size(),
              kMostPeers);
  std::unique_ptr<Peers> p(new Peers());
  QUIRE_CHECKED(p->connect(devices));
  QUIRE_CHECKED(p->allocate(devices, exchange_bytes));
  Meeting m{.of = static_cast<int32_t>(devices.size()),
            .error = reinterpret_cast<uint32_t*>(p->error_.data()),
            .patience_ns = static_cast<uint64_t>(patience_seconds * 1e9)};
  RankLink::Places memory{};
  for (size_t r = 0; r < devices.size(); ++r) {
    m.flags[r] = reinterpret_cast<uint32_t*>(p->ranks_[r].flags.data());
    memory[r] = p->ranks_[r].exchange.data();
  }
  for (m.rank = 0; m.rank < m.of; ++m.rank) {
    m.meetings = reinterpret_cast<uint32_t*>(p->ranks_[static_cast<size_t>(m.rank)].meetings.data());
    p->links_.push_back(std::make_unique<PeerLink>(m, memory, exchange_bytes));
  }
  return Result<std::unique_ptr<Peers>>(std::move(p));
}

Peers::~Peers() {
  for (Rank& r : ranks_) {
    const OnDevice on(r.device);
    for (Memory* m : {&r.exchange, &r.flags, &r.meetings}) *m = Memory();
  }
}

Status Peers::connect(std::span<const int> devices) {
  for (const int device : devices) {
    const OnDevice on(device);
    QUIRE_CHECKED(on.status());
    for (const int other : devices)
      if (other != device) QUIRE_CHECKED(enable(device, other));
  }
  return {};
}

Status Peers::allocate(std::span<const int> devices, int64_t exchange_bytes) {
  QUIRE_TRY(error_, Memory::create(Memory::Where::kPinned, sizeof(uint32_t), "what goes wrong between GPUs"));
  *reinterpret_cast<uint32_t*>(error_.data()) = 0;
  for (const int device : devices) {
    const OnDevice on(device);
    QUIRE_CHECKED(on.status());
    Rank r{.device = device};
    QUIRE_TRY(r.exchange, zeros(exchange_bytes, "what GPUs show each other"));
    QUIRE_TRY(r.flags, zeros(int64_t{4} * kMostPeers * kMeetingBlocks, "flags between GPUs"));
    QUIRE_TRY(r.meetings, zeros(int64_t{4} * kMeetingBlocks, "flags between GPUs"));
    QUIRE_CHECKED(check(cudaDeviceSynchronize(), "clearing memory"));
    ranks_.push_back(std::move(r));
  }
  return {};
}

Status Peers::status() const {
  const uint32_t missing = *reinterpret_cast<const volatile uint32_t*>(error_.data());
  if (missing == 0) return {};
  return Error{Fault::kBug,
               fmt::format("rank {} of {} did not come to a meeting of the GPUs in time", missing - 1, links_.size())};
}

}  // namespace quire::cuda
