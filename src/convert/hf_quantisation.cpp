#include "convert/hf_quantisation.h"

#include <algorithm>

#include "gguf/metadata.h"

namespace quire::convert {
namespace {

using gguf::printable;
using nlohmann::json;

// compressed-tensors' rotations (SpinQuant, QuIP): those of weights are in the weights already, others are computed
// with every token.
Status check_transforms(const json& quantisation) {
  constexpr std::string_view kKey = "transform_config";
  const json* transforms = find_member(quantisation, kKey);
  if (transforms == nullptr) return {};
  const json* groups = find_member(*transforms, "config_groups");
  if (groups == nullptr) groups = transforms;
  for (const auto& [name, scheme] : groups->items()) {
    const json* applied = find_member(scheme, "apply");
    if (applied == nullptr || !applied->is_array())
      return file_error("{}: {} does not say where it applies", kKey, printable(name));
    for (const json& one : *applied) {
      const json* where = find_member(one, "location");
      if (where != nullptr && (*where == json("weight_input") || *where == json("weight_output"))) continue;
      return file_error(
          "{}: {} transforms {} while the model runs, which is not supported; start from the original model", kKey,
          printable(name), printable(where == nullptr ? "something" : where->dump()));
    }
  }
  return {};
}

// What activations the weights were made for, as far as these are 8-bit floats: of compressed-tensors each group of
// layers says it, and one that is rounded as it comes is enough.
std::string activation_scheme(const json& quantisation, std::string_view method) {
  if (method == "fbgemm_fp8") return "dynamic";
  if (const json* scheme = find_member(quantisation, "activation_scheme"); scheme != nullptr)
    return *scheme == json("dynamic") || *scheme == json("static") ? scheme->get<std::string>() : "";
  const json* const groups = find_member(quantisation, "config_groups");
  std::string found;
  if (method != "compressed-tensors" || groups == nullptr) return found;
  for (const auto& [name, group] : groups->items()) {
    const json* const activations = find_member(group, "input_activations");
    if (activations == nullptr) continue;
    const json *const bits = find_member(*activations, "num_bits"), *const type = find_member(*activations, "type"),
                      *const dynamic = find_member(*activations, "dynamic");
    if (bits == nullptr || type == nullptr || *bits != json(8) || *type != json("float")) continue;
    if (dynamic != nullptr && *dynamic == json(true)) return "dynamic";
    found = "static";
  }
  return found;
}

}  // namespace

Status read_quantisation(const json& root, const HfKeys& k, HfConfig& c) {
  const json* q = nullptr;
  for (const std::string_view key : {"quantization_config", "compression_config"}) {
    if (q == nullptr) q = find_member(root, key);
    if (q == nullptr) q = k.find(key);
  }
  if (q == nullptr) return {};
  QUIRE_TRY(const std::string method, text_of(find_member(*q, "quant_method"), "quant_method"));
  if (method.empty() || method == "fp8" || method == "fbgemm_fp8" || method.starts_with("modelopt") ||
      method == "compressed-tensors" || method == "mxfp4") {
    c.activation_scheme = activation_scheme(*q, method);
    return check_transforms(*q);
  }
  if (method == "gptq" || method == "awq") {
    int64_t bits = 4;
    if (const json* b = find_member(*q, "bits"); b != nullptr && b->is_number_integer()) bits = b->get<int64_t>();
    if (bits != 4)
      return file_error("quant_method: {} with bits {} is not supported, only 4; start from the original model",
                        printable(method), bits);
    QUIRE_TRY(const std::string format, text_of(find_member(*q, "checkpoint_format"), "checkpoint_format"));
    QUIRE_TRY(const std::string version, text_of(find_member(*q, "version"), "version"));
    if ((!format.empty() && format != "gptq" && format != "gptq_v2") ||
        (!version.empty() && version != "gemm" && version != "GEMM"))
      return file_error("quant_method: {} in the format {} is not supported; start from the original model",
                        printable(method), printable(format.empty() ? version : format));
    c.gptq_v2 = format == "gptq_v2";
    return {};
  }
  return file_error(
      "quant_method: {} is not supported (fp8, modelopt, compressed-tensors, gptq and awq are); start from the "
      "original model",
      printable(method));
}

}  // namespace quire::convert
