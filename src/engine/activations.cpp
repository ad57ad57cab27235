#include "engine/activations.h"

#include <algorithm>

#include "engine/cuda_device.h"

namespace quire {
namespace {

bool has_weights_for(const gguf::File& file, TokenRounding tokens) {
  return std::ranges::any_of(file.tensors(),
                             [&](const gguf::TensorInfo& t) { return gemm::rounds_beside(tokens, t.dtype); });
}

// As docs/convert.md has it: "dynamic" where FP8 weights were made for activations that are rounded as they come.
bool made_for_fp8(const gguf::File& file) {
  constexpr std::string_view kKey = "quire.activation_scheme";
  if (!file.has(kKey)) return false;
  const Result<std::string_view> scheme = file.get_string(kKey);
  return scheme.ok() && *scheme == "dynamic";
}

// NVFP4 weights come with the scales that activations in FP4 were calibrated to where they were made for these. Rows
// have scales of their own here.
bool made_for_fp4(const gguf::File& file) {
  return std::ranges::any_of(file.tensors(),
                             [](const gguf::TensorInfo& t) { return t.name.ends_with(".input_scale"); });
}

// Why it cannot be done; empty: it can.
std::string_view misfit_of_fp8(const gguf::File& file, const Machine& machine) {
  if (machine.device == Device::kCpu)
    return "a CPU computes prompts with bf16 activations; use --device cuda with a GPU of compute capability 9.0";
  if (machine.device == Device::kCuda && !machine.gpu.wgmma)
    return "this GPU has no kernels for it, which are for compute capability 9.0 (H100, H200)";
  if (!has_weights_for(file, TokenRounding::kE4m3))
    return "this model has no FP8 weights, and others are multiplied with bf16 activations; open the folder of an FP8 "
           "model as it is";
  return "";
}
std::string_view misfit_of_fp4(const gguf::File& file, const Machine& machine) {
  if (machine.device == Device::kCpu)
    return "a CPU computes prompts with bf16 activations; use --device cuda with a GPU of compute capability 12.x";
  if (machine.device == Device::kCuda && !machine.fp4)
    return machine.gpu.major == 12
               ? "this program is compiled without the code for it, which 120f-real in QUIRE_CUDA_ARCHITECTURES asks "
                 "for"
               : "this GPU has no kernels for it, which are for compute capability 12.x (RTX 50, RTX PRO, DGX Spark)";
  if (!has_weights_for(file, TokenRounding::kFp4))
    return "this model has no NVFP4 or MXFP4 weights, and others are multiplied with bf16 activations";
  return "";
}

}  // namespace

Result<PromptActivations> choose_activations(const gguf::File& file, PromptActivations asked, const Machine& machine) {
  const std::string_view no_fp8 = misfit_of_fp8(file, machine), no_fp4 = misfit_of_fp4(file, machine);
  if (asked == PromptActivations::kFp8 && !no_fp8.empty()) return request_error("--activations fp8: {}", no_fp8);
  if (asked == PromptActivations::kFp4 && !no_fp4.empty()) return request_error("--activations fp4: {}", no_fp4);
  if (asked != PromptActivations::kAuto) return asked;
  // The reference is what others are compared with: it rounds nothing that nobody asked for.
  if (machine.device != Device::kCuda) return PromptActivations::kBf16;
  if (no_fp8.empty() && made_for_fp8(file)) return PromptActivations::kFp8;
  return no_fp4.empty() && made_for_fp4(file) ? PromptActivations::kFp4 : PromptActivations::kBf16;
}

Result<PromptActivations> choose_activations(const gguf::File& file, PromptActivations asked, Device device, int gpu) {
  if (device != Device::kCuda) return choose_activations(file, asked, Machine{.device = device});
  const Result<Machine> machine = open_gpu(gpu);
  if (machine.ok()) return choose_activations(file, asked, *machine);
  return asked == PromptActivations::kAuto ? PromptActivations::kBf16 : asked;
}

}  // namespace quire
