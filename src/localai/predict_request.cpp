#include "localai/predict_request.h"

#include <algorithm>

namespace quire::localai {
namespace {

using server::ApiResult;
using server::ApiStatus;
using server::bad_field;
using server::Json;
using server::JsonDocument;

// Strings, arrays, objects and members of a text of JSON, or somewhat more of what is none.
size_t blocks_of(std::string_view text) {
  size_t blocks = 0;
  bool inside = false;  // a string
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (inside && c == '\\') ++i;
    if (c == '"') inside = !inside;
    blocks += inside ? c == '"' : c == '[' || c == '{' || c == ':';
  }
  return blocks;
}

// One of several texts that share their limits.
ApiResult<JsonDocument> parse_part(std::string_view text, server::JsonLimits& left) {
  QUIRE_TRY(JsonDocument parsed, server::parse_json(text, left));
  left.max_bytes -= text.size();
  left.max_blocks -= std::min(left.max_blocks, blocks_of(text));
  return parsed;
}

// JSON inside a string of a message. All of these together may have what a body of HTTP may, `left` of it still.
ApiResult<JsonDocument> parse_field(std::string_view name, const std::string& text, server::JsonLimits& left) {
  ApiResult<JsonDocument> parsed = parse_part(text, left);
  if (parsed.ok()) return parsed;
  return bad_field(name, "invalid_json", "'{}': {}", name, parsed.error().message);
}

ApiResult<JsonDocument> parse_array(std::string_view name, const std::string& text, server::JsonLimits& left) {
  QUIRE_TRY(JsonDocument list, parse_field(name, text, left));
  if (list->is_null()) return JsonDocument(Json::array());
  if (!list->is_array())
    return bad_field(name, "invalid_type", "'{}' must be an array, not {}", name, server::json_kind(*list));
  return list;
}

// Numbers have no "not said" in this interface: 0 stands for it, except of the temperature, which every client sends.
void add_sampling(const backend::PredictOptions& asked, Json& body) {
  body["temperature"] = asked.temperature();
  if (asked.tokens() > 0) body["max_tokens"] = asked.tokens();
  if (asked.topk() > 0) body["top_k"] = asked.topk();
  for (const auto& [name, value] : {std::pair{"top_p", asked.topp()},
                                    {"min_p", asked.minp()},
                                    {"typical_p", asked.typicalp()},
                                    {"repetition_penalty", asked.penalty()},
                                    {"frequency_penalty", asked.frequencypenalty()},
                                    {"presence_penalty", asked.presencepenalty()}})
    if (value != 0) body[name] = value;
  if (asked.seed() >= 0) body["seed"] = asked.seed();
  if (asked.ignoreeos()) body["ignore_eos"] = true;
  for (const std::string& stop : asked.stopprompts())
    if (!stop.empty()) body["stop"].push_back(stop);
}

ApiStatus add_common(const backend::PredictOptions& asked, bool stream, Json& body, server::JsonLimits& left) {
  for (const auto& [name, given] : {std::pair{"Videos", asked.videos_size()}, {"Audios", asked.audios_size()}})
    if (given > 0) return bad_field(name, "unsupported_parameter", "'{}' is not supported", name);
  add_sampling(asked, body);
  body["stream"] = stream;
  if (!asked.grammar().empty()) body["grammar"] = asked.grammar();
  if (!asked.logitbias().empty()) {
    QUIRE_TRY(JsonDocument bias, parse_field("LogitBias", asked.logitbias(), left));
    body["logit_bias"] = std::move(*bias);
  }
  return {};
}

// Either number switches them on; the second is how many alternatives are told.
std::optional<int> logprobs_of(const backend::PredictOptions& asked) {
  if (asked.logprobs() <= 0 && asked.toplogprobs() <= 0) return std::nullopt;
  return std::max(asked.toplogprobs(), 0);
}

ApiResult<JsonDocument> message_of(const backend::Message& m, int number, server::JsonLimits& left) {
  JsonDocument message(Json{{"role", m.role()}, {"content", m.content()}});
  for (const auto& [name, text] : {std::pair{"name", &m.name()},
                                   {"tool_call_id", &m.tool_call_id()},
                                   {"reasoning_content", &m.reasoning_content()}})
    if (!text->empty()) (*message)[name] = *text;
  if (m.tool_calls().empty()) return message;
  QUIRE_TRY(JsonDocument calls, parse_array(fmt::format("Messages[{}].tool_calls", number), m.tool_calls(), left));
  if (!calls->empty()) (*message)["tool_calls"] = std::move(*calls);
  return message;
}

// Pictures are told of no message: they go in front of the text of the user's last one, as base64 or data: URLs.
ApiStatus add_images(const backend::PredictOptions& asked, const server::RequestLimits& limits, Json& messages) {
  if (asked.images().empty()) return {};
  if (!limits.images)
    return bad_field("Images", "unsupported_parameter", "'Images' is not supported: this model reads text");
  const auto last = std::find_if(messages.rbegin(), messages.rend(), [](const Json& m) { return m["role"] == "user"; });
  if (last == messages.rend())
    return bad_field("Images", "invalid_value", "'Images' has pictures, and there is no message of a user");
  Json parts = Json::array();
  for (const std::string& image : asked.images())
    parts.push_back({{"type", "image"}, {image.starts_with("data:") ? "url" : "data", image}});
  if (Json& text = (*last)["content"]; text != "") parts.push_back({{"type", "text"}, {"text", std::move(text)}});
  (*last)["content"] = std::move(parts);
  return {};
}

// A word, or JSON that stands for a word or an object.
ApiResult<JsonDocument> choice_of(const std::string& text, server::JsonLimits& left) {
  if (text.front() == '{' || text.front() == '"') return parse_field("ToolChoice", text, left);
  return JsonDocument(Json(text));
}

// "true" and "false", as LocalAI writes what a request or a model's YAML says.
ApiStatus add_metadata(const backend::PredictOptions& asked, Json& body) {
  if (const auto at = asked.metadata().find("enable_thinking"); at != asked.metadata().end()) {
    if (at->second != "true" && at->second != "false")
      return bad_field("Metadata.enable_thinking", "invalid_value",
                       "'Metadata.enable_thinking' must be \"true\" or \"false\"");
    body["chat_template_kwargs"] = {{"enable_thinking", at->second == "true"}};
  }
  if (const auto at = asked.metadata().find("reasoning_effort"); at != asked.metadata().end() && !at->second.empty())
    body["reasoning_effort"] = at->second;
  return {};
}

ApiResult<server::ChatRequest> read_chat(const backend::PredictOptions& asked, const server::RequestLimits& limits,
                                         JsonDocument body, server::JsonLimits& left) {
  (*body)["messages"] = Json::array();
  for (int i = 0; i < asked.messages_size(); ++i) {
    QUIRE_TRY(JsonDocument message, message_of(asked.messages(i), i, left));
    (*body)["messages"].push_back(std::move(*message));
  }
  QUIRE_CHECKED(add_images(asked, limits, (*body)["messages"]));
  if (!asked.tools().empty()) {
    QUIRE_TRY(JsonDocument tools, parse_array("Tools", asked.tools(), left));
    (*body)["tools"] = std::move(*tools);
  }
  if (!asked.toolchoice().empty()) {
    QUIRE_TRY(JsonDocument choice, choice_of(asked.toolchoice(), left));
    (*body)["tool_choice"] = std::move(*choice);
  }
  QUIRE_CHECKED(add_metadata(asked, *body));
  if (const std::optional<int> top = logprobs_of(asked)) {
    (*body)["logprobs"] = true;
    (*body)["top_logprobs"] = *top;
  }
  return server::parse_chat_request(std::move(body), limits);
}

}  // namespace

ApiResult<PredictRequest> read_predict(const backend::PredictOptions& asked, const server::RequestLimits& limits,
                                       bool stream) {
  JsonDocument body(Json::object());
  server::JsonLimits left;
  QUIRE_CHECKED(add_common(asked, stream, *body, left));
  if (asked.usetokenizertemplate()) {
    QUIRE_TRY(server::ChatRequest chat, read_chat(asked, limits, std::move(body), left));
    chat.params.cut_max_tokens = true;
    return PredictRequest(std::move(chat));
  }
  if (!asked.images().empty())
    return bad_field("Images", "unsupported_parameter",
                     "'Images' is not supported without UseTokenizerTemplate: the template says where pictures stand");
  (*body)["prompt"] = asked.prompt();
  if (const std::optional<int> top = logprobs_of(asked)) (*body)["logprobs"] = *top;
  QUIRE_TRY(server::CompletionRequest text, server::parse_completion_request(std::move(body), limits));
  text.short_by_default = false;
  text.params.cut_max_tokens = true;
  return PredictRequest(std::move(text));
}

ApiResult<server::EmbeddingRequest> read_embedding(const backend::PredictOptions& asked,
                                                   const server::RequestLimits& limits) {
  JsonDocument body(Json::object());
  if (asked.embeddings().empty() && asked.embeddingtokens_size() > 0) {
    Json& ids = (*body)["input"] = Json::array();
    for (const int32_t id : asked.embeddingtokens()) ids.push_back(id);
  } else {
    (*body)["input"] = asked.embeddings().empty() ? asked.prompt() : asked.embeddings();
  }
  return server::parse_embedding_request(std::move(body), limits);
}

ApiResult<server::ScoreRequest> read_rerank(const backend::RerankRequest& asked, const server::RequestLimits& limits) {
  Json documents = Json::array();
  for (const std::string& document : asked.documents()) documents.push_back(document);
  JsonDocument body(Json{{"query", asked.query()}, {"documents", std::move(documents)}});
  if (asked.top_n() > 0) (*body)["top_n"] = asked.top_n();
  return server::parse_rerank_request(std::move(body), limits);
}

}  // namespace quire::localai
