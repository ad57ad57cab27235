// A backend whose device is lost in the middle of a run: another one, until the injected error.
#pragma once

#include <functional>
#include <optional>

#include "engine/backend.h"

namespace quire::test {

struct Loss {
  int step = 0;         // the first that fails, counted from 0; every later one fails as well
  bool lasting = true;  // or this one alone: the device is sound
  // What waiting for that step says; called once. Nothing of the real backend is waited for from then on. No error: the
  // device has been damaged here, and the real backend will say so.
  std::function<std::optional<Error>()> error = [] {
    return Error{Fault::kBug, "the GPU computing a step: an illegal memory access was encountered"};
  };
  // Called before the real backend is told that a step's masks are written; may take its time.
  std::function<void()> before_masks = nullptr;
};

// Wraps what `make` makes. Steps are submitted to it until the loss is known, as to a device that fails between a
// launch and the wait for it.
BackendFactory failing_backend(Loss loss, BackendFactory make = make_backend);

}  // namespace quire::test
