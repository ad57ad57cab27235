// Running the suites' calls on a GPU. What a case holds in the host's memory is copied to the device before a call and
// back after it, so a suite is the same for both, and its checks look at the host's memory in any case.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ops/conformance/conformance.h"

namespace quire::conformance {

// A device that runs operators. Memory of the device is an address here. The one with CUDA is cuda/gpu.cu; tests have
// one that is the CPU.
class Gpu {
 public:
  // GPU number `gpu`; or Fault::kRequest, and why it cannot be used, in one line.
  static Result<std::unique_ptr<Gpu>> create(int gpu);
  virtual ~Gpu() = default;

  virtual std::string name() const = 0;
  virtual Machine machine() const = 0;         // that operators run on
  virtual std::span<std::byte> memory() = 0;   // of the device: operands first, scratch behind them
  virtual std::span<std::byte> staging() = 0;  // the host's: what is copied to and from the beginning of memory()

  // How the device keeps weights and KV blocks.
  virtual int64_t packed_bytes(const Weight& w, bool paired) const = 0;
  // Enqueues that w (and up, where they are one paired matrix), which lies on the device as in a file, becomes the
  // experts from first_expert on of what is packed at `to` for `experts` of them.
  virtual Status pack(const Weight& w, const Weight* up, std::byte* to, int64_t experts, int64_t first_expert) = 0;
  virtual bool takes_table(DType type, int64_t width) const = 0;  // as the file has it
  // Where within a block and head the element c of a key or value of d elements lies.
  virtual int64_t kv_offset(int64_t token, int64_t c, int64_t d, bool value) const = 0;

  // Copies the first bytes of staging() there, calls `pack` and runs the operator, whose scratch memory lies behind
  // them and starts as NaN; copies them back. An error if anything fails, or if it writes behind the scratch memory
  // that it asked for.
  virtual Status run(int64_t bytes, const std::function<Status()>& pack,
                     const std::function<void(const OpContext&)>& op) = 0;
};

// The operands of one call. Every function rewrites what it is given to the place on the device.
class Operands {
 public:
  explicit Operands(Gpu& gpu);

  // A view of a buffer, or else a contiguous array of the host's, which nobody may write. Empty ones stay.
  void tensor(Tensor& t);
  // An array of the host's, or part of a buffer.
  template <class T>
  void array(T*& p, int64_t count) {
    if (p != nullptr) p = reinterpret_cast<T*>(place(p, count * static_cast<int64_t>(sizeof(T))));
  }
  // Also makes up what the host knows of them.
  void segments(SegmentArray& s);
  // Keys or values: [blocks, Hkv, 16 d] bf16, all of a buffer.
  void kv(Tensor& t, int64_t d, bool value);
  // Matrices, as a GPU loads them: packed, gate and up as one. A shared expert like the others lies behind them.
  void matrix(Weight& w);
  void gate_up(Weight& gate, Weight& up);
  void experts(Weight& gate, Weight& up, Weight& down, Weight& shared_gate, Weight& shared_up, Weight& shared_down);
  // Rows to embed: as they are, or in half precision.
  void table(Weight& w);

  // Runs the operator on what was placed. While it runs the buffers hold garbage, so that an operand which was not
  // placed shows on any device. An error also if it wrote between its operands, or to an array.
  Status run(const std::function<void(const OpContext&)>& op);

 private:
  struct Entry {
    std::span<std::byte> host;
    int64_t at = 0;
    bool buffer = false;   // comes back; else it must not change
    int64_t head_dim = 0;  // of KV
    bool value = false;
  };
  std::byte* place(const void* host, int64_t bytes);
  Entry& entry_of(std::span<std::byte> host, bool buffer);
  int64_t reserve(int64_t bytes);
  std::byte* device(int64_t at) const { return gpu_.memory().data() + at; }
  Weight raw(const Weight& w);
  void pack(Weight& w, Weight* up, Weight* behind, Weight* behind_up);
  void scales(Weight& w, Weight* behind);
  void copy(const Entry& e, bool to_device) const;
  Status check(const Entry& e) const;

  Gpu& gpu_;
  std::vector<Entry> entries_;
  std::vector<std::vector<std::byte>> made_;  // arrays that no case has: factors, tables in half precision
  std::vector<std::function<Status()>> packs_;
  std::vector<std::span<std::byte>> packed_;  // of staging memory
  int64_t used_ = 0;
};

}  // namespace quire::conformance
