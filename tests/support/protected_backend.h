// A backend whose memory the host cannot address: the CPU's, taken away (PROT_NONE) whenever it is not computing a
// step.
#pragma once

#include "engine/backend.h"

namespace quire::test {

Result<std::unique_ptr<Backend>> make_protected_backend(const std::shared_ptr<const LoadedModel>& model,
                                                        const EnginePlan& options);
// Reads a byte of the memory of such a backend: the end of the process.
void read_protected(Backend& backend);

}  // namespace quire::test
