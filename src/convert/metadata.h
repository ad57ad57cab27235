// The key/value records of the file to write.
#pragma once

#include <string>

#include "convert/hf_config.h"
#include "convert/hf_tokenizer.h"
#include "convert/plan.h"
#include "gguf/writer.h"

namespace quire::convert {

// "models/demo-moe/" -> "demo-moe".
std::string folder_name(const std::string& folder);
// "models/demo-moe/" -> "Demo Moe": the folder's name, its words capitalised.
std::string model_name(const std::string& folder);

// "13M", or "16x10M" for experts (16 times what one token's weights would be with one expert of each layer).
std::string size_label(const Plan& plan, const HfConfig& config);

void write_metadata(const HfConfig& config, const HfTokenizer& tokenizer, const nlohmann::json& generation,
                    const Plan& plan, const std::string& name, gguf::Writer& w);

}  // namespace quire::convert
