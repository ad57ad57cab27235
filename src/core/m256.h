// Vectors of 256 bits in AVX2's intrinsics: the compiler's own on x86-64, two NEON vectors each on ARM.
#pragma once

#ifdef __x86_64__
#include <immintrin.h>
#else
#include "core/m256_neon_float.h"
// Ends the macros of both.
#include "core/m256_neon_integer.h"
#endif
