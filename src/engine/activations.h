// Which activations an engine computes prompts with.
#pragma once

#include "engine/loaded_model.h"
#include "engine/options.h"

namespace quire {

// What `asked` means for this model on this machine: kBf16 or kFp8. Fault::kRequest where kFp8 is asked for and the
// model has no FP8 weights, or the machine no kernels for it.
Result<PromptActivations> choose_activations(const gguf::File& file, PromptActivations asked, const Machine& machine);
// The same on a device, of whose GPUs number `gpu` is meant. One that cannot be used is told of by others.
Result<PromptActivations> choose_activations(const gguf::File& file, PromptActivations asked, Device device, int gpu);

}  // namespace quire
