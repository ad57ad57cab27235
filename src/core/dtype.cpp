#include "core/dtype.h"

#include <algorithm>
#include <array>
#include <span>

#include "core/result.h"

namespace quire {
namespace {

constexpr DTypeInfo kTable[] = {
    {DType::kF32, "f32", 1, 4},
    {DType::kF16, "f16", 1, 2},
    {DType::kQ4_0, "q4_0", 32, 18},
    {DType::kQ4_1, "q4_1", 32, 20},
    {DType::kQ5_0, "q5_0", 32, 22},
    {DType::kQ5_1, "q5_1", 32, 24},
    {DType::kQ8_0, "q8_0", 32, 34},
    {DType::kQ8_1, "q8_1", 32, 36},
    {DType::kQ2_K, "q2_k", 256, 84},
    {DType::kQ3_K, "q3_k", 256, 110},
    {DType::kQ4_K, "q4_k", 256, 144},
    {DType::kQ5_K, "q5_k", 256, 176},
    {DType::kQ6_K, "q6_k", 256, 210},
    {DType::kQ8_K, "q8_k", 256, 292},
    {DType::kIQ2_XXS, "iq2_xxs", 256, 66},
    {DType::kIQ2_XS, "iq2_xs", 256, 74},
    {DType::kIQ3_XXS, "iq3_xxs", 256, 98},
    {DType::kIQ1_S, "iq1_s", 256, 50},
    {DType::kIQ4_NL, "iq4_nl", 32, 18},
    {DType::kIQ3_S, "iq3_s", 256, 110},
    {DType::kIQ2_S, "iq2_s", 256, 82},
    {DType::kIQ4_XS, "iq4_xs", 256, 136},
    {DType::kI8, "i8", 1, 1},
    {DType::kI16, "i16", 1, 2},
    {DType::kI32, "i32", 1, 4},
    {DType::kI64, "i64", 1, 8},
    {DType::kF64, "f64", 1, 8},
    {DType::kIQ1_M, "iq1_m", 256, 56},
    {DType::kBF16, "bf16", 1, 2},
    {DType::kTQ1_0, "tq1_0", 256, 54},
    {DType::kTQ2_0, "tq2_0", 256, 66},
    {DType::kMXFP4, "mxfp4", 32, 17},
    {DType::kNVFP4, "nvfp4", 64, 36},
    {DType::kQ1_0, "q1_0", 128, 18},
    {DType::kQ2_0, "q2_0", 64, 18},
    {DType::kFP8, "fp8", 128, 132},
    {DType::kF8E4M3, "f8_e4m3", 1, 1},
};

// Files and options name types by number and by name; what only memory holds is not to be had that way.
constexpr std::span<const DTypeInfo> kFileTypes(kTable, std::size(kTable) - 2);
static_assert(!is_memory_type(kFileTypes.back().type) && is_memory_type(kTable[kFileTypes.size()].type));

}  // namespace

std::optional<DTypeInfo> find_dtype(uint32_t gguf_id) {
  for (const DTypeInfo& i : kFileTypes)
    if (static_cast<uint32_t>(i.type) == gguf_id) return i;
  return std::nullopt;
}

std::optional<DTypeInfo> find_dtype(std::string_view name) {
  const auto same = [](char a, char b) { return a == (b >= 'A' && b <= 'Z' ? b - 'A' + 'a' : b); };
  for (const DTypeInfo& i : kFileTypes)
    if (std::equal(i.name.begin(), i.name.end(), name.begin(), name.end(), same)) return i;
  return std::nullopt;
}

// Where each id is in the table; a number past its end: nowhere. Kernels ask once for every few rows.
constexpr auto kPlaces = [] {
  std::array<uint8_t, 256> places{};
  places.fill(static_cast<uint8_t>(std::size(kTable)));
  for (size_t i = 0; i < std::size(kTable); ++i) places[static_cast<size_t>(kTable[i].type)] = static_cast<uint8_t>(i);
  return places;
}();

const DTypeInfo& dtype_info(DType t) {
  if (const size_t i = kPlaces[static_cast<size_t>(t)]; i < std::size(kTable)) return kTable[i];
  fatal(__FILE__, __LINE__, fmt::format("no such dtype: {}", static_cast<int>(t)));
}

}  // namespace quire
