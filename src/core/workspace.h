// Scratch memory for operators: a bump arena in a range of addresses that is reserved once. Pages are backed by memory
// when they are first written, so a large reservation costs nothing; nothing is allocated, moved or given back while
// steps run. Memory is 64-byte aligned and uninitialised.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "core/result.h"

namespace quire {

class Workspace {
 public:
  // For tools, tests and dry runs, which do not know how much they will need: as many addresses as there are, up to 64
  // GiB. Where those do not suffice, std::bad_alloc.
  Workspace();
  // For what has been measured (high_water() of a dry run). An error if so many addresses cannot be had.
  static Result<Workspace> create(int64_t bytes);
  // Over memory of somebody else's, a device's for example: what is taken is an address, which nothing here touches.
  static Workspace over(std::span<std::byte> memory);
  Workspace(Workspace&& o) noexcept { *this = std::move(o); }
  Workspace& operator=(Workspace&& o) noexcept {
    std::swap(base_, o.base_);
    std::swap(size_, o.size_);
    std::swap(used_, o.used_);
    std::swap(high_water_, o.high_water_);
    std::swap(owned_, o.owned_);
    std::swap(measured_, o.measured_);
    return *this;
  }
  ~Workspace();

  int64_t high_water() const { return high_water_; }
  std::span<std::byte> memory() const { return {base_, static_cast<size_t>(size_)}; }

  // Everything taken within a scope is returned at its end. Scopes nest. Taking more than was measured is a mistake of
  // ours, and fatal: the dry run must have seen the largest step.
  class Scope {
   public:
    explicit Scope(Workspace& w) : w_(w), used_(w.used_) {}
    ~Scope() { w_.used_ = used_; }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

    template <class T>
    T* take(int64_t count) {
      return reinterpret_cast<T*>(w_.take(count * static_cast<int64_t>(sizeof(T))));
    }

   private:
    Workspace& w_;
    int64_t used_;
  };

 private:
  struct Nothing {};
  explicit Workspace(Nothing) {}
  bool reserve(int64_t bytes);
  std::byte* take(int64_t bytes);

  std::byte* base_ = nullptr;
  int64_t size_ = 0, used_ = 0, high_water_ = 0;
  bool owned_ = true;
  bool measured_ = true;  // how much will be needed
};

}  // namespace quire
