// Which tensors a file has, as a number: of names, types, shapes and samples of bytes.
#pragma once

#include <cstdint>

#include "gguf/reader.h"

namespace quire {

// `h` with all tensors of the file added (core/hash.h).
uint64_t add_tensors(uint64_t h, const gguf::File& file);

}  // namespace quire
