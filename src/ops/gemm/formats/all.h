// The decoders of all formats, for the instructions that the file which includes this one is compiled for.
#pragma once

#ifdef __AVX512VBMI__
#include "ops/gemm/formats/blocks32_avx512.h"
#include "ops/gemm/formats/floats_avx512.h"
#include "ops/gemm/formats/fp4_avx512.h"
#include "ops/gemm/formats/iq4_avx512.h"
#include "ops/gemm/formats/kquants_avx512.h"
#include "ops/gemm/formats/small_kquants_avx512.h"
#else
#include "ops/gemm/formats/blocks32_avx2.h"
#include "ops/gemm/formats/floats_avx2.h"
#include "ops/gemm/formats/fp4_avx2.h"
#include "ops/gemm/formats/iq4_avx2.h"
#include "ops/gemm/formats/kquants_avx2.h"
#include "ops/gemm/formats/small_kquants_avx2.h"
#endif
