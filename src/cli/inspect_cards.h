// What `quire inspect` says of how many cards a model takes.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>

#include "gguf/reader.h"
#include "model/config.h"

namespace quire::cli {

// For sequences of `context` tokens on cards of so many GB, printed, or added to `out`. Where the planner finds the
// model's numbers impossible: why, or nothing in `out`.
void report_cards(const gguf::File& file, const ModelConfig& model, int64_t context, std::span<const int32_t> cards,
                  nlohmann::ordered_json* out);

}  // namespace quire::cli
