// Which activations an engine computes prompts with.
#pragma once

#include "engine/loaded_model.h"
#include "engine/options.h"

namespace quire {

// What `asked` means for this model on this machine: anything but kAuto. Fault::kRequest where kFp8 or kFp4 is asked
// for and the model has no weights that it is for, or the machine no kernels.
Result<PromptActivations> choose_activations(const gguf::File& file, PromptActivations asked, const Machine& machine);
// The same on a device, of whose GPUs number `gpu` is meant. One that cannot be used is told of by others.
Result<PromptActivations> choose_activations(const gguf::File& file, PromptActivations asked, Device device, int gpu);

}  // namespace quire
