#include "engine/model_parts.h"

namespace quire {

Result<ModelParts> load_parts(const gguf::File& file) {
  ModelParts parts;
  QUIRE_TRY(parts.model, Model::load(file));
  QUIRE_TRY(const std::string_view kind, file.get_string_or("tokenizer.ggml.model", "none"));
  if (kind == "none" || kind == "no_vocab") return parts;
  QUIRE_TRY(parts.tokenizer, Tokenizer::load(file));
  if (parts.tokenizer->size() != parts.model->config().vocab)
    return file_error("the tokenizer has {} tokens, but token_embd.weight has {} rows", parts.tokenizer->size(),
                      parts.model->config().vocab);
  return parts;
}

}  // namespace quire
