// Answers of Ollama's /api/chat and /api/generate, whole and as a JSON object a line.
#pragma once

#include "server/answer_writer.h"

namespace quire::server {

enum class OllamaAnswer { kChat, kGenerate };
// `tokenizer`: for the texts of tokens whose log-probabilities are told; null: they are not. It must outlive the
// writer.
std::unique_ptr<AnswerWriter> ollama_writer(OllamaAnswer kind, std::string model, const Tokenizer* tokenizer);

// What a request is answered that generates nothing.
Json ollama_loaded(OllamaAnswer kind, const std::string& model);
// "2026-01-31T12:00:00.123456Z"
std::string timestamp_now();

}  // namespace quire::server
