// Orders of rows and heads: GGUF's, where a model folder has another. Element i of an order is the place of i in the
// model folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "convert/hf_config.h"

namespace quire::convert {

// llama's rotary pairs are neighbours in GGUF and half a head apart in the model folder: row 2j + b of a head
// comes from row b * d/2 + j.
std::vector<int64_t> interleaved_rows(int64_t heads, int64_t head_dim);

// The model folder keeps the value heads of one key head together; GGUF goes round the key heads.
std::vector<int64_t> tiled_heads(const HfConfig& c);

// That order for blocks of `size` rows, behind `before` rows that stay. Empty where nothing changes places.
std::vector<int64_t> tiled_rows(const HfConfig& c, int64_t size, int64_t before = 0);

// `count` rows, each the one after the next, from `first` on.
std::vector<int64_t> every_other(int64_t first, int64_t count);

// Where the model folder has q, k, v and z of a delta net packed by key heads: the rows of one kind after those of
// another, each in the order of the heads. `first` and `last`: kinds, 0 to 3.
std::vector<int64_t> unpacked_rows(const HfConfig& c, size_t first, size_t last);

}  // namespace quire::convert
