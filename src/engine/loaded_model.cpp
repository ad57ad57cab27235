#include "engine/loaded_model.h"

#include <chrono>

namespace quire {

Result<std::shared_ptr<const LoadedModel>> load_model(const std::string& path) {
  const auto start = std::chrono::steady_clock::now();
  QUIRE_TRY(gguf::File file, gguf::File::open(path));
  auto m = std::make_shared<LoadedModel>(std::move(file));
  m->file.prefetch();
  QUIRE_TRY(m->model, Model::load(m->file).context(path));
  QUIRE_TRY(const std::string_view kind, m->file.get_string_or("tokenizer.ggml.model", "none"));
  if (kind != "none" && kind != "no_vocab") {
    QUIRE_TRY(m->tokenizer, Tokenizer::load(m->file).context(path));
    if (m->tokenizer->size() != m->model->config().vocab)
      return file_error("{}: the tokenizer has {} tokens, but token_embd.weight has {} rows", path,
                        m->tokenizer->size(), m->model->config().vocab);
  }
  m->load_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return std::shared_ptr<const LoadedModel>(std::move(m));
}

}  // namespace quire
