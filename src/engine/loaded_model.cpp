#include "engine/loaded_model.h"

#include <chrono>

#include "core/memory.h"

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

std::shared_ptr<const RepackedWeights> LoadedModel::repacked(ThreadPool& pool) const {
  const std::lock_guard lock(repacked_mutex_);
  if (auto made = repacked_.lock()) return made;
  const std::vector<Weight> weights = model->matrices();
  const int64_t copies = RepackedWeights::bytes_for(weights), available = available_memory();
  if (copies + static_cast<int64_t>(file.mapped_bytes()) > available) return nullptr;
  Result<std::unique_ptr<RepackedWeights>> made = RepackedWeights::create(weights, pool);
  if (!made.ok()) return nullptr;  // no memory after all: as above, the text is the same without
  std::shared_ptr<const RepackedWeights> shared = std::move(made).value();
  repacked_ = shared;
  return shared;
}

}  // namespace quire
