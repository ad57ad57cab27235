// Which type a matrix of a model folder gets in GGUF.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "convert/matrix.h"
#include "convert/plan.h"

namespace quire::convert {

struct TypeChoice {
  explicit TypeChoice(const PlanOptions& options) : given(options.type), keep_fp8(options.keep_fp8) {}

  // Of the parts of one tensor. Codes are kept where all parts have the same kind and the columns make whole blocks.
  // `reordered`: blocks of so many columns change places.
  DType choose(const std::vector<Matrix>& parts, bool reordered, int64_t column_block);

  std::optional<DType> given;  // PlanOptions::type
  bool keep_fp8 = false;
  std::map<std::string, int64_t> decoded = {};  // matrices that became BF16, by what they were
};

}  // namespace quire::convert
