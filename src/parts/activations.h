// The intermediates of one step, laid out in one place: taken from the workspace at the start of a forward pass. What a
// step needs is counted by the same functions, over counting_workspace().
#pragma once

#include "core/tensor.h"
#include "core/workspace.h"

namespace quire {

// Gives addresses that nobody may touch, as many as are wanted: for high_water() of what is laid out.
inline Workspace counting_workspace() {
  return Workspace::over({reinterpret_cast<std::byte*>(uintptr_t{1} << 20), size_t{1} << 62});
}

class ActivationMemory {
 public:
  ActivationMemory(Workspace::Scope& scope, DType activation, int64_t rows)
      : scope_(scope), activation_(activation), rows_(rows) {}

  int64_t rows() const { return rows_; }
  DType activation() const { return activation_; }
  // For intermediates of another number of rows.
  ActivationMemory of_rows(int64_t rows) const { return {scope_, activation_, rows}; }
  // [rows, a], [rows, a, b] in the activation type.
  Tensor act(int64_t a) const { return take(activation_, {rows_, a}); }
  Tensor act(int64_t a, int64_t b) const { return take(activation_, {rows_, a, b}); }
  // The same in float32: the residual stream, and small values that steer exponentials.
  Tensor f32(int64_t a) const { return take(DType::kF32, {rows_, a}); }

 private:
  Tensor take(DType t, std::initializer_list<int64_t> dims) const {
    Tensor v = make_tensor(nullptr, t, dims);
    v.data = scope_.take<std::byte>(dtype_bytes(t, v.elems()));
    return v;
  }
  Workspace::Scope& scope_;
  DType activation_;
  int64_t rows_;
};

}  // namespace quire
