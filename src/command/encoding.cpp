#include "command/encoding.h"

#include <array>

#include "quant/format.h"

namespace quire::cli {
namespace {

constexpr std::array<DType, 15> kEncodable = {DType::kF32,  DType::kF16,    DType::kBF16,  DType::kQ8_0,  DType::kQ6_K,
                                              DType::kQ5_K, DType::kQ5_1,   DType::kQ5_0,  DType::kQ4_K,  DType::kQ4_1,
                                              DType::kQ4_0, DType::kIQ4_NL, DType::kMXFP4, DType::kNVFP4, DType::kQ3_K};

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace

EncodingGroup encoding_group(std::string_view name, int n_dims) {
  if (n_dims < 2 || n_dims > 3 || !name.ends_with(".weight")) return EncodingGroup::kKept;
  if (contains(name, "norm") || contains(name, "ffn_gate_inp") || contains(name, "ssm_conv1d"))
    return EncodingGroup::kKept;
  if (name.ends_with("token_embd.weight") || name == "output.weight" || contains(name, "nextn.embed_tokens") ||
      contains(name, "nextn.shared_head_head"))
    return EncodingGroup::kHead;
  return contains(name, ".ffn_") ? EncodingGroup::kFfn : EncodingGroup::kProjection;
}

Result<DType> parse_encodable(std::string_view name) {
  const auto info = find_dtype(name);
  if (info && quant::can_encode(info->type)) return info->type;
  std::string list;
  for (const DType t : kEncodable) list += fmt::format("{}{}", list.empty() ? "" : ", ", dtype_name(t));
  return request_error("cannot write type '{}': choose one of {}", name, list);
}

}  // namespace quire::cli
