#include "server/protocol/ollama_request.h"

#include "ops/sampling/params.h"
#include "server/protocol/chat_body.h"
#include "server/protocol/content_part.h"
#include "server/protocol/picture.h"

namespace quire::server {
namespace {

// Ollama's clients name a model with its tag: "latest" is the one that there is.
void pass_model(Fields& f, ChatBody& chat) {
  std::string model, name;
  f.text("model", model, 256);
  f.text("name", name, 256);
  if (model.empty()) model = std::move(name);
  constexpr std::string_view kLatest = ":latest";
  if (model.ends_with(kLatest)) model.resize(model.size() - kLatest.size());
  if (!model.empty()) chat.set("model", std::move(model));
}

// "options": how to sample. What is about memory and devices is the operator's.
ApiStatus pass_options(Fields& f, ChatBody& chat) {
  Json* options = f.take_object("options");
  if (options == nullptr) return {};
  Fields inner(*options, f.ignored(), "options.");
  const auto pass = [&](std::string_view theirs, std::string_view ours) {
    if (Json* value = inner.take(theirs)) chat.set(ours, std::move(*value));
  };
  for (const SamplingField& field : kSamplingFields) pass(field.llama_name(), field.name);
  pass("seed", "seed");
  pass("stop", "stop");
  // -1, -2: as many as there is room for.
  Json* most = inner.take("num_predict");
  if (most != nullptr && *most != -1 && *most != -2) chat.set("max_tokens", std::move(*most));
  return inner.finish();
}

// A template's switch. What has none is not thought about, or always.
void pass_think(Fields& f, const RequestLimits& limits, ChatBody& chat) {
  Json* think = f.take("think");
  if (think == nullptr) return;
  if (limits.effort_variable.empty()) return f.note_ignored("think");
  if (think->is_boolean())
    chat.set("reasoning_effort", *think ? "medium" : "none");
  else
    chat.set("reasoning_effort", std::move(*think));
}

ApiStatus pass_common(Fields& f, const RequestLimits& limits, ChatBody& chat) {
  pass_model(f, chat);
  QUIRE_CHECKED(pass_options(f, chat));
  pass_think(f, limits, chat);
  bool stream = true;
  f.boolean("stream", stream);
  chat.set("stream", stream);
  f.ignore("keep_alive");  // the model stays as long as the server
  Json* format = f.take("format");
  if (format != nullptr && *format == "json")
    chat.set("response_format", {{"type", "json_object"}});
  else if (format != nullptr && *format != "")
    chat.set("response_format", {{"type", "json_object"}, {"schema", std::move(*format)}});
  bool logprobs = false;
  f.boolean("logprobs", logprobs);
  Json* const top = f.take("top_logprobs");
  if (logprobs) chat.set("logprobs", true);
  if (logprobs && top != nullptr) chat.set("top_logprobs", std::move(*top));
  if (!logprobs && top != nullptr && *top != 0) f.note_ignored("top_logprobs");
  f.unserved("shift", "an answer ends where the context does", {false, true});
  return {};
}

bool has_images(const Json& object) {
  const auto images = object.find("images");
  return images != object.end() && !images->is_null() && !(images->is_array() && images->empty());
}

// Pictures that stand beside a text, in front of it: the content becomes parts.
ApiStatus add_pictures(Json& images, const std::string& field, Json& content) {
  if (!images.is_array())
    return bad_field(field, "invalid_type", "'{}' must be an array, not {}", field, json_kind(images));
  Json parts = Json::array();
  for (size_t i = 0; i < images.size(); ++i) {
    QUIRE_TRY(Json picture, picture_of_base64(images[i], fmt::format("{}[{}]", field, i)));
    parts.push_back(std::move(picture));
  }
  if (content != "") parts.push_back(text_part(std::move(content)));
  content = std::move(parts);
  return {};
}

// What stands as "images" beside a text: pictures, or behind the text words for them where the model takes none.
ApiStatus add_images(Json& object, const std::string& field, const RequestLimits& limits, IgnoredFields& ignored,
                     Json& content) {
  if (!has_images(object)) return {};
  if (limits.images) return add_pictures(object["images"], field, content);
  QUIRE_TRY(const std::string words, words_for_images(&object["images"], field, ignored));
  auto& text = content.get_ref<std::string&>();
  if (!text.empty()) text += '\n';
  text += words;
  return {};
}

// A message as ours: its names for thinking and for whose result it is differ.
ApiStatus pass_message(Json& m, const std::string& where, const RequestLimits& limits, ChatBody& chat,
                       IgnoredFields& ignored) {
  if (!m.is_object()) return bad_field(where, "invalid_type", "'{}' must be an object, not {}", where, json_kind(m));
  Json message = Json::object();
  for (const auto& [theirs, ours] : {std::pair{"role", "role"},
                                     {"content", "content"},
                                     {"thinking", "reasoning_content"},
                                     {"tool_name", "name"},
                                     {"tool_call_id", "tool_call_id"}})
    if (const auto at = m.find(theirs); at != m.end() && *at != Json()) message[ours] = std::move(*at);
  if (const auto calls = m.find("tool_calls"); calls != m.end() && calls->is_array() && !calls->empty()) {
    for (Json& call : *calls)
      if (call.is_object() && !call.contains("type")) call["type"] = "function";
    message["tool_calls"] = std::move(*calls);
  }
  Json& content = message["content"];
  if (content.is_null()) content = "";
  if (content.is_string()) QUIRE_CHECKED(add_images(m, where + ".images", limits, ignored, content));
  chat.messages().push_back(std::move(message));
  return {};
}

OllamaLoad load_of(IgnoredFields ignored, JsonDocument& chat) {
  return {.ignored = std::move(ignored), .model = chat->value("model", std::string())};
}

}  // namespace

namespace {

// The rest of the way of both routes that make a conversation.
ApiResult<ChatRequest> conversation_of(JsonDocument converted, const RequestLimits& limits, IgnoredFields ignored,
                                       bool drop_oldest) {
  QUIRE_TRY(ChatRequest r, parse_chat_request(std::move(converted), limits, std::move(ignored)));
  r.params.cut_max_tokens = true;
  r.drop_oldest = drop_oldest;
  return r;
}

}  // namespace

ApiResult<std::variant<ChatRequest, OllamaLoad>> parse_ollama_chat(JsonDocument body, const RequestLimits& limits) {
  using Parsed = std::variant<ChatRequest, OllamaLoad>;
  IgnoredFields ignored{.strict = limits.strict_parameters};
  Fields f(*body, ignored);
  ChatBody chat(f);
  QUIRE_CHECKED(pass_common(f, limits, chat));
  chat.pass({"tools"});
  bool truncate = true;
  f.boolean("truncate", truncate);
  Json* messages = f.take("messages");
  if (messages != nullptr && !messages->is_array())
    return bad_field("messages", "invalid_type", "'messages' must be an array, not {}", json_kind(*messages));
  for (size_t i = 0; messages != nullptr && i < messages->size(); ++i)
    QUIRE_CHECKED(pass_message((*messages)[i], fmt::format("messages[{}]", i), limits, chat, ignored));
  QUIRE_TRY(JsonDocument converted, chat.take());
  if ((*converted)["messages"].empty()) return Parsed(load_of(std::move(ignored), converted));
  QUIRE_TRY(ChatRequest r, conversation_of(std::move(converted), limits, std::move(ignored), truncate));
  return Parsed(std::move(r));
}

ApiResult<std::variant<ChatRequest, CompletionRequest, OllamaLoad>> parse_ollama_generate(JsonDocument body,
                                                                                          const RequestLimits& limits) {
  using Parsed = std::variant<ChatRequest, CompletionRequest, OllamaLoad>;
  IgnoredFields ignored{.strict = limits.strict_parameters};
  Fields f(*body, ignored);
  ChatBody chat(f);
  QUIRE_CHECKED(pass_common(f, limits, chat));
  f.ignore("images");
  std::string text, system;
  bool raw = false;
  f.text("prompt", text, SIZE_MAX);
  Json prompt = std::move(text);
  f.text("system", system, SIZE_MAX);
  f.boolean("raw", raw);
  std::string suffix;
  f.text("suffix", suffix, SIZE_MAX);
  if (!suffix.empty() && !limits.infill) return no_infill("suffix");
  raw = raw || !suffix.empty();  // no template says how a text is filled in
  if (raw && limits.images && has_images(*body))
    return bad_field("images", "unsupported_parameter",
                     "'images' is not supported without the chat template, which says where pictures stand");
  QUIRE_CHECKED(add_images(*body, "images", limits, ignored, prompt));
  const bool empty = prompt == "" && suffix.empty();
  f.unserved("truncate", "a prompt is never cut", {false, true});
  f.refuse("template", "the server's own template is used; say \"raw\" to use none", {""});
  f.refuse("context", "earlier texts go into the prompt, or use /api/chat", {Json::array()});
  if (!raw && !system.empty()) chat.add_message("system")["content"] = std::move(system);
  if (!raw) chat.add_message("user")["content"] = std::move(prompt);
  QUIRE_TRY(JsonDocument converted, chat.take());
  if (empty) return Parsed(load_of(std::move(ignored), converted));
  if (!raw) {
    QUIRE_TRY(ChatRequest r, conversation_of(std::move(converted), limits, std::move(ignored), false));
    return Parsed(std::move(r));
  }
  converted->erase("messages");
  converted->erase("reasoning_effort");
  // A completion says with one number what a chat says with two fields.
  if (converted->contains("logprobs")) (*converted)["logprobs"] = converted->value("top_logprobs", Json(0));
  converted->erase("top_logprobs");
  if (!suffix.empty()) (*converted)["suffix"] = std::move(suffix);
  (*converted)["prompt"] = std::move(prompt);
  QUIRE_TRY(CompletionRequest r, parse_completion_request(std::move(converted), limits, std::move(ignored)));
  r.short_by_default = false;
  r.params.cut_max_tokens = true;
  return Parsed(std::move(r));
}

ApiResult<OllamaLoad> parse_ollama_show(JsonDocument body, const RequestLimits& limits) {
  IgnoredFields ignored{.strict = limits.strict_parameters};
  Fields f(*body, ignored);
  ChatBody request(f);
  pass_model(f, request);
  for (const char* name : {"verbose", "system", "template", "options"}) f.ignore(name);
  QUIRE_TRY(JsonDocument converted, request.take());
  return load_of(std::move(ignored), converted);
}

ApiResult<OllamaPull> parse_ollama_pull(JsonDocument body, const RequestLimits& limits) {
  IgnoredFields ignored{.strict = limits.strict_parameters};
  Fields f(*body, ignored);
  ChatBody request(f);
  OllamaPull pull;
  pass_model(f, request);
  f.boolean("stream", pull.stream);
  for (const char* name : {"insecure", "username", "password"}) f.ignore(name);  // of a registry, which nobody asks
  QUIRE_TRY(JsonDocument converted, request.take());
  if (!converted->contains("model")) return bad_field("model", "missing_parameter", "'model' is missing");
  pull.model = load_of(std::move(ignored), converted);
  return pull;
}

namespace {

bool is_empty(const Json* input) {
  return input == nullptr || *input == "" || (input->is_array() && input->empty());
}

ApiResult<std::variant<EmbeddingRequest, OllamaLoad>> parse_embed(JsonDocument body, const RequestLimits& limits,
                                                                  const char* input_name) {
  using Parsed = std::variant<EmbeddingRequest, OllamaLoad>;
  IgnoredFields ignored{.strict = limits.strict_parameters};
  Fields f(*body, ignored);
  ChatBody request(f);
  pass_model(f, request);
  Json* const input = f.take(input_name);
  const bool load = is_empty(input);
  if (!load) request.set("input", std::move(*input));
  request.pass({"dimensions"});
  f.ignore("keep_alive");
  bool cut = true;
  f.boolean("truncate", cut);
  f.unserved("options", "they change no embedding", {Json::object()});
  QUIRE_TRY(JsonDocument converted, request.take());
  if (load) return Parsed(load_of(std::move(ignored), converted));
  converted->erase("messages");
  QUIRE_TRY(EmbeddingRequest r, parse_embedding_request(std::move(converted), limits, std::move(ignored)));
  r.cut_inputs = cut;
  return Parsed(std::move(r));
}

}  // namespace

ApiResult<std::variant<EmbeddingRequest, OllamaLoad>> parse_ollama_embed(JsonDocument body,
                                                                         const RequestLimits& limits) {
  return parse_embed(std::move(body), limits, "input");
}

ApiResult<std::variant<EmbeddingRequest, OllamaLoad>> parse_ollama_embedding(JsonDocument body,
                                                                             const RequestLimits& limits) {
  if (const auto prompt = body->find("prompt"); prompt != body->end() && !prompt->is_string() && !prompt->is_null())
    return bad_field("prompt", "invalid_type", "'prompt' must be a string, not {}", json_kind(*prompt));
  return parse_embed(std::move(body), limits, "prompt");
}

}  // namespace quire::server
