// The routes of Ollama's API.
#include <openssl/sha.h>

#include <algorithm>
#include <map>

#include "server/api.h"
#include "server/embedding_answer.h"
#include "server/generation.h"
#include "server/protocol/ollama_request.h"
#include "server/writers/ollama_writer.h"

namespace quire::server {

struct Api::OllamaRoutes {
  static ApiStatus version(Api& api, Call& call);
  static ApiStatus tags(Api& api, Call& call);
  static ApiStatus ps(Api& api, Call& call);
  static ApiStatus show(Api& api, Call& call);
  static ApiStatus chat(Api& api, Call& call);
  static ApiStatus generate(Api& api, Call& call);
  static ApiStatus embed(Api& api, Call& call);
  static ApiStatus embedding(Api& api, Call& call);
  static ApiStatus pull(Api& api, Call& call);
};

std::span<const Api::Route> Api::ollama_routes() {
  using H = OllamaRoutes;
  static constexpr Route kRows[] = {
      {"GET", "/api/version", Route::kOpen, 0, kOllama, H::version},
      {"GET", "/api/tags", Route::kKey, Route::kModel, kOllama, H::tags},
      {"GET", "/api/ps", Route::kKey, Route::kModel, kOllama, H::ps},
      {"POST", "/api/show", Route::kKey, Route::kModel, kOllama, H::show},
      {"POST", "/api/chat", Route::kKey, Route::kGenerates, kOllama, H::chat},
      {"POST", "/api/generate", Route::kKey, Route::kGenerates, kOllama, H::generate},
      {"POST", "/api/embed", Route::kKey, Route::kGenerates, kOllama, H::embed},
      {"POST", "/api/embeddings", Route::kKey, Route::kGenerates, kOllama, H::embedding},
      {"POST", "/api/pull", Route::kKey, Route::kModel, kOllama, H::pull},
  };
  return kRows;
}
namespace {

// The release of Ollama whose API this is. Clients ask for one that has what they use: Codex for /v1/responses.
constexpr const char* kOllamaRelease = "0.13.5";

// 64 hexadecimal digits, as clients expect them, that stay the same as long as texts do.
std::string digest_of(const ModelContext& m) {
  const std::string& text = m.fingerprint();
  unsigned char bytes[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), bytes);
  std::string digest;
  for (const unsigned char b : bytes) digest += fmt::format("{:02x}", b);
  return digest;
}

int64_t parameters_of(const ModelContext& m) {
  int64_t n = 0;
  for (const gguf::TensorInfo& t : m.loaded().file.tensors()) n += t.elems();
  return n;
}

// "8.0B", "630.2M"
std::string size_text(int64_t parameters) {
  const auto n = static_cast<double>(parameters);
  return n >= 1e9 ? fmt::format("{:.1f}B", n / 1e9) : fmt::format("{:.1f}M", n / 1e6);
}

// The type that most bytes of the weights have.
std::string quantization_of(const ModelContext& m) {
  std::map<DType, int64_t> bytes;
  for (const gguf::TensorInfo& t : m.loaded().file.tensors()) bytes[t.dtype] += t.bytes;
  const auto most =
      std::max_element(bytes.begin(), bytes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return most == bytes.end() ? "unknown" : std::string(dtype_name(most->first));
}

Json details_json(const ModelContext& m) {
  const std::string& architecture = m.loaded().model->config().architecture;
  return {{"parent_model", ""},
          {"format", "gguf"},
          {"family", architecture},
          {"families", Json::array({architecture})},
          {"parameter_size", size_text(parameters_of(m))},
          {"quantization_level", quantization_of(m)}};
}

std::string created_text(const ModelContext& m) {
  const std::time_t at = m.created();
  std::tm utc{};
  gmtime_r(&at, &utc);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday,
                     utc.tm_hour, utc.tm_min, utc.tm_sec);
}

Json ollama_model(const ModelContext& m, const std::string& name) {
  return {{"name", name},
          {"model", name},
          {"modified_at", created_text(m)},
          {"size", m.loaded().file.tensor_bytes()},
          {"digest", digest_of(m)},
          {"details", details_json(m)}};
}

Json capabilities_of(const ModelContext& m) {
  Json all = Json::array({"completion", "embedding"});
  if (m.limits().images) all.push_back("vision");
  if (m.limits().template_tools) all.push_back("tools");
  if (!m.limits().effort_variable.empty()) all.push_back("thinking");
  return all;
}

}  // namespace

ApiStatus Api::OllamaRoutes::version(Api&, Call& call) {
  answer(call, {{"version", kOllamaRelease}});
  return {};
}

ApiStatus Api::OllamaRoutes::tags(Api&, Call& call) {
  Json models = Json::array();
  for (const std::string& name : call.loaded.model->names()) models.push_back(ollama_model(*call.loaded.model, name));
  answer(call, {{"models", std::move(models)}});
  return {};
}

ApiStatus Api::OllamaRoutes::ps(Api&, Call& call) {
  const ModelContext& m = *call.loaded.model;
  Json running = ollama_model(m, m.name());
  running.erase("modified_at");
  running["expires_at"] = "9999-12-31T23:59:59Z";  // it stays as long as the server
  running["size_vram"] = running["size"];
  running["context_length"] = m.context();
  answer(call, {{"models", Json::array({std::move(running)})}});
  return {};
}

ApiStatus Api::OllamaRoutes::show(Api& api, Call& call) {
  QUIRE_TRY(JsonDocument document, api.body(call));
  const ModelContext& m = *call.loaded.model;
  QUIRE_TRY(const OllamaLoad asked, parse_ollama_show(std::move(document), m.limits()));
  api.report(call, asked.ignored);
  QUIRE_CHECKED(m.check_name(asked.model));
  const ModelConfig& c = m.loaded().model->config();
  answer(call, {{"modelfile", ""},
                {"parameters", ""},
                {"template", m.chat_template()},
                {"details", details_json(m)},
                {"model_info",
                 {{"general.architecture", c.architecture},
                  {"general.parameter_count", parameters_of(m)},
                  {c.architecture + ".context_length", m.context()},
                  {c.architecture + ".embedding_length", c.d_model}}},
                {"capabilities", capabilities_of(m)},
                {"modified_at", created_text(m)}});
  return {};
}

namespace {

// Whose texts log-probabilities are told with; null: none are told.
const Tokenizer* tokenizer_for(const GenerationPlan& plan) {
  return plan.logprobs ? &plan.model->tokenizer() : nullptr;
}

}  // namespace

ApiStatus Api::OllamaRoutes::chat(Api& api, Call& call) {
  QUIRE_TRY(JsonDocument document, api.body(call));
  QUIRE_TRY(auto parsed, parse_ollama_chat(std::move(document), call.loaded.model->limits()));
  if (auto* const chat = std::get_if<ChatRequest>(&parsed))
    return api.converse(call, std::move(*chat), [](const GenerationPlan& plan, const GenerationParams&) {
      return ollama_writer(OllamaAnswer::kChat, plan.model_name, tokenizer_for(plan));
    });
  const OllamaLoad& load = std::get<OllamaLoad>(parsed);
  api.report(call, load.ignored);
  QUIRE_CHECKED(call.loaded.model->check_name(load.model));
  answer(call, ollama_loaded(OllamaAnswer::kChat, load.model));
  return {};
}

ApiStatus Api::OllamaRoutes::generate(Api& api, Call& call) {
  QUIRE_TRY(JsonDocument document, api.body(call));
  QUIRE_TRY(auto parsed, parse_ollama_generate(std::move(document), call.loaded.model->limits()));
  if (auto* const chat = std::get_if<ChatRequest>(&parsed))
    return api.converse(call, std::move(*chat), [](const GenerationPlan& plan, const GenerationParams&) {
      return ollama_writer(OllamaAnswer::kGenerate, plan.model_name, tokenizer_for(plan));
    });
  if (auto* const text = std::get_if<CompletionRequest>(&parsed))
    return api.go_on(call, std::move(*text),
                     [](const GenerationPlan& plan, const GenerationParams&, const std::vector<std::string>&) {
                       return ollama_writer(OllamaAnswer::kGenerate, plan.model_name, tokenizer_for(plan));
                     });
  const OllamaLoad& load = std::get<OllamaLoad>(parsed);
  api.report(call, load.ignored);
  QUIRE_CHECKED(call.loaded.model->check_name(load.model));
  answer(call, ollama_loaded(OllamaAnswer::kGenerate, load.model));
  return {};
}

ApiStatus Api::OllamaRoutes::embed(Api& api, Call& call) {
  QUIRE_TRY(JsonDocument document, api.body(call));
  QUIRE_TRY(auto parsed, parse_ollama_embed(std::move(document), call.loaded.model->limits()));
  if (auto* const request = std::get_if<EmbeddingRequest>(&parsed))
    return api.embed(call, std::move(*request), ollama_embeddings);
  const OllamaLoad& load = std::get<OllamaLoad>(parsed);
  api.report(call, load.ignored);
  QUIRE_CHECKED(call.loaded.model->check_name(load.model));
  answer(call, {{"model", call.loaded.model->told_name(load.model)}, {"embeddings", Json::array()}});
  return {};
}

ApiStatus Api::OllamaRoutes::embedding(Api& api, Call& call) {
  QUIRE_TRY(JsonDocument document, api.body(call));
  QUIRE_TRY(auto parsed, parse_ollama_embedding(std::move(document), call.loaded.model->limits()));
  if (auto* const request = std::get_if<EmbeddingRequest>(&parsed))
    return api.embed(call, std::move(*request), ollama_embedding_body);
  const OllamaLoad& load = std::get<OllamaLoad>(parsed);
  api.report(call, load.ignored);
  QUIRE_CHECKED(call.loaded.model->check_name(load.model));
  answer(call, {{"embedding", Json::array()}});
  return {};
}

// Clients pull before they ask, whether the model is there or not.
ApiStatus Api::OllamaRoutes::pull(Api& api, Call& call) {
  QUIRE_TRY(JsonDocument document, api.body(call));
  const ModelContext& m = *call.loaded.model;
  QUIRE_TRY(const OllamaPull pull, parse_ollama_pull(std::move(document), m.limits()));
  api.report(call, pull.model.ignored);
  if (ApiStatus known = m.check_name(pull.model.model); !known.ok()) {
    ApiError error = known.take_error();
    error.message += "; a server has one model and pulls no other (`quire pull` does, `quire serve` names it)";
    return error;
  }
  const Json success = {{"status", "success"}};
  if (pull.stream) {
    answer(call, HttpResponse{.body = dump({{"status", "pulling manifest"}}) + '\n' + dump(success) + '\n',
                              .content_type = std::string(kLineStream.content_type)});
  } else {
    answer(call, success);
  }
  return {};
}

}  // namespace quire::server
