#include "server/protocol/score_request.h"

#include <limits>

#include "server/protocol/chat_body.h"

namespace quire::server {
namespace {

// A string, or an array of strings, moved to the end of `inputs`; how many they are.
ApiResult<size_t> add_texts(Fields& f, const char* name, Json& inputs) {
  Json* value = f.take(name);
  if (value == nullptr) return bad_field(name, "missing_parameter", "'{}' is missing", name);
  if (value->is_string()) {
    inputs.push_back(std::move(*value));
    return size_t{1};
  }
  if (!value->is_array() || value->empty())
    return bad_field(name, "invalid_type", "'{}' must be a string or an array of strings", name);
  for (Json& text : *value) {
    if (!text.is_string())
      return bad_field(name, "invalid_type", "'{}' must hold strings, not {}", name, json_kind(text));
    inputs.push_back(std::move(text));
  }
  return value->size();
}

// The texts become the inputs of a request for embeddings.
ApiResult<EmbeddingRequest> embedding_of(Fields& f, Json inputs, const RequestLimits& limits, IgnoredFields& ignored) {
  ChatBody request(f);
  request.set("input", std::move(inputs));
  request.pass({"model", "priority", "cache_salt", "add_special_tokens", "user"});
  f.refuse("truncate_prompt_tokens", "inputs are never cut");
  f.refuse("activation", "scores are cosines of embeddings");
  QUIRE_TRY(JsonDocument converted, request.take());
  converted->erase("messages");
  return parse_embedding_request(std::move(converted), limits, std::move(ignored));
}

}  // namespace

ApiResult<ScoreRequest> parse_score_request(JsonDocument body, const RequestLimits& limits) {
  IgnoredFields ignored{.strict = limits.strict_parameters};
  Fields f(*body, ignored);
  Json inputs = Json::array();
  QUIRE_TRY(const size_t first, add_texts(f, "text_1", inputs));
  QUIRE_TRY(const size_t second, add_texts(f, "text_2", inputs));
  if (first != 1 && first != second)
    return bad_field("text_1", "invalid_value", "'text_1' has {} texts and 'text_2' {}: one, or as many of both", first,
                     second);
  QUIRE_TRY(EmbeddingRequest embedding, embedding_of(f, std::move(inputs), limits, ignored));
  ScoreRequest r{.embedding = std::move(embedding)};
  for (size_t i = 0; i < second; ++i) r.pairs.push_back({first == 1 ? 0 : i, first + i});
  return r;
}

ApiResult<ScoreRequest> parse_rerank_request(JsonDocument body, const RequestLimits& limits) {
  IgnoredFields ignored{.strict = limits.strict_parameters};
  Fields f(*body, ignored);
  std::string query;
  f.text("query", query, SIZE_MAX);
  Json* documents = f.take("documents");
  if (documents == nullptr || !documents->is_array() || documents->empty())
    return bad_field("documents", "invalid_type", "'documents' must be an array of texts");
  bool repeat = true;
  f.boolean("return_documents", repeat);
  int64_t top = 0;
  f.integer("top_n", top, 0, std::numeric_limits<int64_t>::max());
  Json inputs = Json::array({std::move(query)});
  std::vector<std::string> texts;
  for (Json& d : *documents) {
    Json* text = d.is_object() && d.contains("text") ? &d["text"] : &d;
    if (!text->is_string())
      return bad_field("documents", "invalid_type", "'documents' must hold strings, or objects with a 'text'");
    if (repeat) texts.push_back(text->get<std::string>());
    inputs.push_back(std::move(*text));
  }
  const size_t count = documents->size();
  QUIRE_TRY(EmbeddingRequest embedding, embedding_of(f, std::move(inputs), limits, ignored));
  ScoreRequest r{.embedding = std::move(embedding), .documents = std::move(texts)};
  for (size_t i = 0; i < count; ++i) r.pairs.push_back({0, i + 1});
  r.top = top == 0 ? count : std::min(count, static_cast<size_t>(top));
  return r;
}

}  // namespace quire::server
