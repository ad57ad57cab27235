// Memory of the device, and pinned memory of the host, owned.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "core/cuda/check.h"

namespace quire::cuda {

class Memory {
 public:
  enum class Where { kDevice, kPinned };
  Memory() = default;
  // At least one byte, aligned to 256. "what" completes "cannot allocate N MiB of GPU memory for ...".
  static Result<Memory> create(Where where, int64_t bytes, std::string_view what) {
    Memory m;
    m.where_ = where;
    void* p = nullptr;
    const auto size = static_cast<size_t>(bytes > 0 ? bytes : 1);
    const cudaError_t code = where == Where::kDevice ? cudaMalloc(&p, size) : cudaMallocHost(&p, size);
    if (code != cudaSuccess) {
      cudaGetLastError();  // an allocation that failed is no reason for the next launch to fail
      return capacity_error("cannot allocate {} MiB of {} memory for {} ({})", (bytes >> 20) + 1,
                            where == Where::kDevice ? "GPU" : "pinned host", what, cudaGetErrorString(code));
    }
    m.data_ = static_cast<std::byte*>(p);
    m.size_ = size;
    return Result<Memory>(std::move(m));
  }
  Memory(Memory&& o) noexcept { *this = std::move(o); }
  Memory& operator=(Memory&& o) noexcept {
    data_ = std::exchange(o.data_, data_);
    size_ = std::exchange(o.size_, size_);
    where_ = std::exchange(o.where_, where_);
    return *this;
  }
  ~Memory() {
    if (data_ == nullptr) return;
    if (where_ == Where::kDevice)
      cudaFree(data_);
    else
      cudaFreeHost(data_);
  }

  // Gives it to another owner, who frees it as create() says.
  std::span<std::byte> release() { return {std::exchange(data_, nullptr), std::exchange(size_, 0)}; }

  std::byte* data() const { return data_; }
  std::span<std::byte> span() const { return {data_, size_}; }
  int64_t bytes() const { return static_cast<int64_t>(size_); }

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
  Where where_ = Where::kDevice;
};

}  // namespace quire::cuda
