#include "engine/activations.h"

#include <algorithm>

#include "engine/cuda_device.h"

namespace quire {
namespace {

bool has_fp8_weights(const gguf::File& file) {
  return std::ranges::any_of(file.tensors(), [](const gguf::TensorInfo& t) { return t.dtype == DType::kFP8; });
}

// As docs/convert.md has it: "dynamic" where the weights were made for activations that are rounded as they come.
bool made_for_fp8(const gguf::File& file) {
  constexpr std::string_view kKey = "quire.activation_scheme";
  if (!file.has(kKey)) return false;
  const Result<std::string_view> scheme = file.get_string(kKey);
  return scheme.ok() && *scheme == "dynamic";
}

// Why it cannot be done; empty: it can.
std::string_view misfit_of(const gguf::File& file, const Machine& machine) {
  if (machine.device == Device::kCpu)
    return "a CPU computes prompts with bf16 activations; use --device cuda with a GPU of compute capability 9.0";
  if (machine.device == Device::kCuda && !machine.gpu.wgmma)
    return "this GPU has no kernels for it, which are for compute capability 9.0 (H100, H200)";
  if (!has_fp8_weights(file))
    return "this model has no FP8 weights, and others are multiplied with bf16 activations; open the folder of an FP8 "
           "model as it is";
  return "";
}

}  // namespace

Result<PromptActivations> choose_activations(const gguf::File& file, PromptActivations asked, const Machine& machine) {
  const std::string_view misfit = misfit_of(file, machine);
  if (asked == PromptActivations::kFp8 && !misfit.empty()) return request_error("--activations fp8: {}", misfit);
  if (asked != PromptActivations::kAuto) return asked;
  // The reference is what others are compared with: it rounds nothing that nobody asked for.
  const bool fp8 = misfit.empty() && machine.device == Device::kCuda && made_for_fp8(file);
  return fp8 ? PromptActivations::kFp8 : PromptActivations::kBf16;
}

Result<PromptActivations> choose_activations(const gguf::File& file, PromptActivations asked, Device device, int gpu) {
  if (device != Device::kCuda) return choose_activations(file, asked, Machine{.device = device});
  const Result<Machine> machine = open_gpu(gpu);
  if (machine.ok()) return choose_activations(file, asked, *machine);
  return asked == PromptActivations::kFp8 ? asked : PromptActivations::kBf16;
}

}  // namespace quire
