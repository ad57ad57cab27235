// Scratch memory for operators: a bump arena that remembers its high-water mark. The first step of a new size
// may allocate; after that nothing does. Memory is 64-byte aligned and uninitialised.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace quire {

class Workspace {
 public:
  Workspace() = default;
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  size_t high_water() const { return high_water_; }

  // Everything taken within a scope is returned at its end. Scopes nest.
  class Scope {
   public:
    explicit Scope(Workspace& w) : w_(w), used_(w.used_) {}
    ~Scope() { w_.release(used_); }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

    template <class T>
    T* take(int64_t count) {
      return static_cast<T*>(w_.take(static_cast<size_t>(count) * sizeof(T)));
    }

   private:
    Workspace& w_;
    size_t used_;
  };

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  struct Piece {
    std::unique_ptr<std::byte, Free> data;
    size_t size = 0;
    size_t begin = 0;  // arena offset of its first byte
  };
  Piece& piece_for(size_t bytes);
  void* take(size_t bytes);
  void release(size_t used);

  std::vector<Piece> pieces_;  // those after the current one stay for the next scope that needs as much
  size_t current_ = 0;
  size_t used_ = 0;
  size_t high_water_ = 0;
};

}  // namespace quire
