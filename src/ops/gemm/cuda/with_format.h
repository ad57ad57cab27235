// From a tile format that is known when the program runs to one that is known when it is compiled.
#pragma once

#include "core/result.h"
#include "ops/gemm/cuda/packed.h"

namespace quire::gemm {

// Calls f.operator()<F>() with F the format, and returns what that returns: the same type for all formats.
template <class Fn>
auto with_format(TileFormat format, Fn&& f) {
  switch (format) {
    case TileFormat::kBf16:
      return f.template operator()<TileFormat::kBf16>();
    case TileFormat::kBf16x2:
      return f.template operator()<TileFormat::kBf16x2>();
    case TileFormat::kBf16x3:
      return f.template operator()<TileFormat::kBf16x3>();
    case TileFormat::kQ8_0:
      return f.template operator()<TileFormat::kQ8_0>();
    case TileFormat::kQ4_K:
      return f.template operator()<TileFormat::kQ4_K>();
    case TileFormat::kQ6_K:
      return f.template operator()<TileFormat::kQ6_K>();
    case TileFormat::kMxfp4:
      return f.template operator()<TileFormat::kMxfp4>();
    case TileFormat::kNvfp4:
      return f.template operator()<TileFormat::kNvfp4>();
    case TileFormat::kFp8:
      return f.template operator()<TileFormat::kFp8>();
  }
  fatal(__FILE__, __LINE__, "no such tile format");
}

}  // namespace quire::gemm
