// SentencePiece's BPE in a model folder: in tokenizer.json as Hugging Face writes it, or tokenizer.model alone.
#pragma once

#include <nlohmann/json.hpp>

#include "convert/sentencepiece_model.h"
#include "tokenizer/tokenizer_config.h"

namespace quire::convert {

// A tokenizer.json whose model is BPE over characters, with bytes for what it does not know.
bool is_sentencepiece(const nlohmann::json& tokenizer);

// What normalizer, pre-tokenizer and decoder of such a file do to spaces. Errors: anything else that they do, by name;
// a decoder that does not undo it.
Result<SpacePrefix> read_space_prefix(const nlohmann::json& tokenizer);

// Types of the steps of a normalizer, pre-tokenizer, decoder or post-processor, which may be a sequence.
std::vector<const nlohmann::json*> steps_of(const nlohmann::json* step, std::string_view list);
// Members of a JSON object, if they are there and of that type.
std::string string_at(const nlohmann::json& object, std::string_view key);
bool flag_at(const nlohmann::json& object, std::string_view key, bool absent);

// Scores for programs that do not read merges: the earlier a token comes out of one, the higher.
std::vector<float> scores_of_merges(const std::vector<std::string>& tokens, const std::vector<std::string>& merges);
// The scores of a tokenizer.model beside the tokenizer.json. Nothing if its pieces are not the normal tokens.
std::optional<std::vector<float>> scores_of_model(const SentencePieceModel& model,
                                                  const std::vector<std::string>& tokens,
                                                  const std::vector<int32_t>& types);

}  // namespace quire::convert
