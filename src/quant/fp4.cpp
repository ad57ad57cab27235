// The 4-bit floating-point formats. Codes are E2M1; nibbles are split in halves of the block that shares a
// scale.
//   mxfp4  32 elements: u8 e (E8M0), u8 qs[16]               low nibble of byte j: element j, high: j + 16
//   nvfp4  64 elements: u8 d[4] (UE4M3), u8 qs[32]           4 sub-blocks of 16, 8 bytes each: elements j and
//   j + 8
// Encoders: encode_fp4.cpp.
#include "quant/fp4.h"

#include "quant/block_bytes.h"
#include "quant/format_table.h"

namespace quire::quant {
namespace {

// `half` bytes hold 2*half elements, all times `scale`.
void decode_codes(const std::byte* qs, int half_count, float scale, float* dst) {
  for (int j = 0; j < half_count; ++j) {
    dst[j] = decode_e2m1(load_u8(qs + j) & 15) * scale;
    dst[j + half_count] = decode_e2m1(load_u8(qs + j) >> 4) * scale;
  }
}

constexpr int kSub = 16;  // elements per NVFP4 scale

}  // namespace

void decode_mxfp4(const std::byte* src, int64_t elems, float* dst) {
  for (int64_t b = 0; b < elems / 32; ++b, src += 17, dst += 32)
    decode_codes(src + 1, 16, decode_e8m0(load_u8(src)), dst);
}

void decode_nvfp4(const std::byte* src, int64_t elems, float* dst) {
  for (int64_t b = 0; b < elems / 64; ++b, src += 36)
    for (int s = 0; s < 4; ++s, dst += kSub)
      decode_codes(src + 4 + 8 * s, kSub / 2, decode_ue4m3(load_u8(src + s)), dst);
}

}  // namespace quire::quant
