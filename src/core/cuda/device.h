// What launches need to know of the current device, and of the code that runs on it.
#pragma once

#include "core/cuda/check.h"
#include "core/cuda/limits.h"

namespace quire::cuda {

// Of the current device, looked up once. Errors: a device older than 8.0, or none of whose code is in this program, is
// Fault::kRequest; one that does not answer is Fault::kBug. Safe to call from several threads and while a stream is
// captured.
Result<DeviceLimits> device_limits();

// For tests: device_limits().shared_bytes is at most this from now on, as on a smaller card, and what asks for more is
// refused (core/cuda/launch.h); 0: what the device has.
void cap_shared_memory(int bytes);

}  // namespace quire::cuda
