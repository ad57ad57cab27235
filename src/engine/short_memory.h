// What is done where memory runs out for one request: that request ends, and all others go on.
#pragma once

#include <new>
#include <stdexcept>

#include "engine/request.h"

namespace quire {

// Whether there was memory for it.
template <class Work>
bool within_memory(const Work& work) {
  try {
    work();
    return true;
  } catch (const std::bad_alloc&) {
  } catch (const std::length_error&) {
  }
  return false;
}

// The end of such a request. Its message has few letters, for which a string needs no memory of its own.
inline TokenEvent::Ended out_of_memory() {
  return {.finish = FinishReason::kError, .error = Error{Fault::kCapacity, "out of memory"}};
}

}  // namespace quire
