#include "convert/hf_sentencepiece.h"

#include <unordered_map>

#include "convert/json.h"
#include "gguf/metadata.h"
#include "tokenizer/vocab.h"

namespace quire::convert {

using gguf::printable;
using nlohmann::json;

std::string string_at(const json& object, std::string_view key) {
  const json* v = find_member(object, key);
  return v != nullptr && v->is_string() ? v->get<std::string>() : std::string();
}

bool flag_at(const json& object, std::string_view key, bool absent) {
  const json* v = find_member(object, key);
  return v != nullptr && v->is_boolean() ? v->get<bool>() : absent;
}

std::vector<const json*> steps_of(const json* step, std::string_view list) {
  std::vector<const json*> steps;
  if (step == nullptr) return steps;
  const json* inner = find_member(*step, list);
  if (string_at(*step, "type") != "Sequence" || inner == nullptr || !inner->is_array()) return {step};
  for (const json& s : *inner) steps.push_back(&s);
  return steps;
}

bool is_sentencepiece(const json& tokenizer) {
  const json* model = find_member(tokenizer, "model");
  return model != nullptr && string_at(*model, "type") == "BPE" && flag_at(*model, "byte_fallback", false);
}

namespace {

// Replaces exactly `from` by `to`?
bool replaces(const json& step, std::string_view from, std::string_view to) {
  const json* pattern = find_member(step, "pattern");
  return string_at(step, "type") == "Replace" && pattern != nullptr && string_at(*pattern, "String") == from &&
         string_at(step, "content") == to;
}

// What happens to spaces on the way in.
struct Spaces {
  bool replaced = false;
  std::optional<SpacePrefix> prefix;
};

Status read_normalizer(const json& tokenizer, Spaces& spaces) {
  for (const json* step : steps_of(find_member(tokenizer, "normalizer"), "normalizers")) {
    const std::string type = string_at(*step, "type");
    if (type == "Prepend" && string_at(*step, "prepend") == kSpaceMark && !spaces.prefix)
      spaces.prefix = SpacePrefix::kPrepend;
    else if (replaces(*step, " ", kSpaceMark))
      spaces.replaced = true;
    else
      return file_error(
          "normalizer: {} is not supported here (Prepend of ▁ and Replace of spaces by ▁ are): the model would see "
          "other text than it knows",
          printable(type));
  }
  return {};
}

Result<SpacePrefix> metaspace_prefix(const json& step) {
  if (string_at(step, "replacement") != kSpaceMark)
    return file_error("pre_tokenizer: Metaspace with the replacement {} is not supported (▁ is)",
                      printable(string_at(step, "replacement")));
  if (flag_at(step, "split", true))
    return file_error("pre_tokenizer: Metaspace that splits words (split) is not supported");
  const std::string scheme = string_at(step, "prepend_scheme");
  if (scheme == "always" || (scheme.empty() && flag_at(step, "add_prefix_space", true)))
    return SpacePrefix::kMetaspaceAlways;
  if (scheme == "first") return SpacePrefix::kMetaspaceFirst;
  if (scheme == "never" || scheme.empty()) return SpacePrefix::kNever;
  return file_error("pre_tokenizer: the prepend_scheme {} of Metaspace is not known", printable(scheme));
}

Status read_pre_tokenizer(const json& tokenizer, Spaces& spaces) {
  for (const json* step : steps_of(find_member(tokenizer, "pre_tokenizer"), "pretokenizers")) {
    const std::string type = string_at(*step, "type");
    const json* pattern = find_member(*step, "pattern");
    if (type == "Metaspace" && !spaces.prefix) {
      QUIRE_TRY(spaces.prefix, metaspace_prefix(*step));
      spaces.replaced = true;
    } else if (type == "Split" && pattern != nullptr && string_at(*pattern, "String") == " " && spaces.replaced) {
      // No space is left to split at.
    } else {
      return file_error(
          "pre_tokenizer: {} is not supported here (Metaspace, and Split at spaces that are ▁ by then, are)",
          printable(type));
    }
  }
  return {};
}

// Does decoding take away the space in front?
Result<bool> decoder_strips(const json& tokenizer) {
  bool bytes = false, spaces = false, strips = false;
  for (const json* step : steps_of(find_member(tokenizer, "decoder"), "decoders")) {
    const std::string type = string_at(*step, "type");
    if (type == "ByteFallback") {
      bytes = true;
    } else if (replaces(*step, kSpaceMark, " ")) {
      spaces = true;
    } else if (type == "Metaspace") {
      spaces = true;
      strips = string_at(*step, "prepend_scheme") != "never";
    } else if (type == "Strip" && string_at(*step, "content") == " " && step->value("start", json(0)) == json(1) &&
               step->value("stop", json(0)) == json(0)) {
      strips = true;
    } else if (type != "Fuse") {
      return file_error(
          "decoder: {} is not supported here (Replace of ▁ by a space, ByteFallback, Fuse, Strip of one space and "
          "Metaspace are)",
          printable(type));
    }
  }
  if (!bytes || !spaces) return file_error("decoder: without ByteFallback and spaces for ▁ is not supported here");
  return strips;
}

}  // namespace

Result<SpacePrefix> read_space_prefix(const json& tokenizer) {
  Spaces spaces;
  QUIRE_CHECKED(read_normalizer(tokenizer, spaces));
  QUIRE_CHECKED(read_pre_tokenizer(tokenizer, spaces));
  if (!spaces.replaced) return file_error("neither normalizer nor pre_tokenizer replaces spaces by ▁: not supported");
  const SpacePrefix prefix = spaces.prefix.value_or(SpacePrefix::kNever);
  QUIRE_TRY(const bool strips, decoder_strips(tokenizer));
  if (strips != (prefix != SpacePrefix::kNever))
    return file_error("decoder: {} a space in front, which encoding {}: not supported", strips ? "takes away" : "keeps",
                      strips ? "does not add" : "adds");
  return prefix;
}

std::vector<float> scores_of_merges(const std::vector<std::string>& tokens, const std::vector<std::string>& merges) {
  std::unordered_map<std::string, size_t> ranks;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    std::string joined = merges[rank];
    if (const size_t space = joined.find(' ', 1); space != joined.npos) joined.erase(space, 1);
    ranks.try_emplace(std::move(joined), rank);
  }
  std::vector<float> scores;
  for (const std::string& t : tokens) {
    const auto at = ranks.find(t);
    scores.push_back(-static_cast<float>(at == ranks.end() ? merges.size() : at->second));
  }
  return scores;
}

std::optional<std::vector<float>> scores_of_model(const SentencePieceModel& model,
                                                  const std::vector<std::string>& tokens,
                                                  const std::vector<int32_t>& types) {
  constexpr float kAdded = -1000;  // what other converters give tokens that the model does not have
  std::vector<float> scores(tokens.size(), kAdded);
  if (model.pieces.size() > tokens.size()) return std::nullopt;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const bool normal = types[i] == static_cast<int32_t>(TokenType::kNormal);
    const bool same = i < model.pieces.size() && model.pieces[i].text == tokens[i];
    if (normal && !same) return std::nullopt;
    if (same) scores[i] = model.pieces[i].score;
  }
  return scores;
}

}  // namespace quire::convert
