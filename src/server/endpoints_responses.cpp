// /v1/responses, of OpenAI's Responses API.
#include <algorithm>
#include <charconv>

#include "gguf/metadata.h"
#include "server/api.h"
#include "server/generation.h"
#include "server/paths.h"
#include "server/protocol/responses_request.h"
#include "server/random_id.h"
#include "server/writers/responses_writer.h"

namespace quire::server {

struct Api::ResponsesRoutes {
  static ApiStatus create(Api& api, Call& call);
  static ApiStatus stored(Api& api, Call& call);
  static ApiStatus erase(Api& api, Call& call);
};

std::span<const Api::Route> Api::responses_routes() {
  using H = ResponsesRoutes;
  static constexpr Route kRows[] = {
      {"POST", "/v1/responses", Route::kKey, Route::kGenerates, kResponses, H::create},
      {"GET", "/v1/responses/", Route::kKey, 0, kResponses, H::stored},
      {"DELETE", "/v1/responses/", Route::kKey, 0, kResponses, H::erase},
  };
  return kRows;
}
namespace {

// A stream of which nothing but its failure is told.
void stream_failure(const std::shared_ptr<Responder>& to, AnswerWriter& writer, const ApiError& error) {
  std::string events = writer.beginning();
  events += writer.failure(error);
  to->post([to, kind = writer.stream_kind(), code = error.code, events = std::move(events)]() mutable {
    to->record().finish = code;
    to->start_stream(kind);
    to->write(std::move(events));
    to->finish_stream();
  });
}

std::string text_at(const Json& object, const char* name) {
  const auto at = object.find(name);
  return at != object.end() && at->is_string() ? at->get<std::string>() : "";
}

// The items of a request as they are kept and listed: with an id and a type where they have none.
std::vector<StoredResponse::Item> items_of(const Json& body) {
  std::vector<StoredResponse::Item> items;
  const auto input = body.find("input");
  if (input == body.end()) return items;
  const auto add = [&](const Json& item) {
    std::string id = text_at(item, "id"), text = dump(item), before;
    if (id.empty() && !item.contains("id")) {
      id = "msg_" + random_hex();
      before = fmt::format(R"("id":"{}",)", id);
    }
    if (!item.contains("type")) before += R"("type":"message",)";
    items.push_back({std::move(id), text.insert(1, before)});
  };
  if (input->is_string())
    add({{"role", "user"}, {"content", Json::array({{{"type", "input_text"}, {"text", *input}}})}});
  if (input->is_array())
    for (const Json& item : *input)
      if (item.is_object() && !item.empty()) add(item);
  return items;
}

ApiError not_found(const std::string& id) {
  return {404, fmt::format("Response with id {} not found.", gguf::printable(id.substr(0, 64))), "id",
          "response_not_found"};
}

struct Place {
  std::string id, rest;  // below /v1/responses/
};
Place place_of(const HttpRequest& request) {
  const std::string below = percent_decoded(canonical_path(request.path).substr(sizeof "/v1/responses/" - 1));
  const size_t slash = std::min(below.find('/'), below.size());
  return {below.substr(0, slash), below.substr(slash)};
}

// The value of NAME=VALUE in a query; empty where there is none.
std::string parameter(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const size_t end = std::min(query.find('&'), query.size());
    const std::string_view one = query.substr(0, end);
    query.remove_prefix(std::min(end + 1, query.size()));
    if (one.size() > name.size() && one.starts_with(name) && one[name.size()] == '=')
      return percent_decoded(one.substr(name.size() + 1));
  }
  return {};
}

// A page of a list: the newest first unless the client says otherwise.
ApiResult<std::string> list_items(const StoredResponse& r, std::string_view query) {
  constexpr size_t kUsual = 20, kMost = 100;
  size_t limit = kUsual;
  if (const std::string asked = parameter(query, "limit"); !asked.empty()) {
    const auto [end, error] = std::from_chars(asked.data(), asked.data() + asked.size(), limit);
    if (error != std::errc{} || end != asked.data() + asked.size() || limit < 1 || limit > kMost)
      return bad_field("limit", "invalid_value", "'limit' must be a number from 1 to {}", kMost);
  }
  std::vector<const StoredResponse::Item*> items;
  for (const StoredResponse::Item& item : r.input) items.push_back(&item);
  if (parameter(query, "order") != "asc") std::reverse(items.begin(), items.end());
  size_t first = 0;
  if (const std::string after = parameter(query, "after"); !after.empty()) {
    const auto at = std::find_if(items.begin(), items.end(), [&](const auto* item) { return item->id == after; });
    if (at == items.end()) return bad_field("after", "invalid_value", "'after' is no item of this response");
    first = static_cast<size_t>(at - items.begin()) + 1;
  }
  const size_t end = std::min(items.size(), first + limit);
  std::string data;
  for (size_t i = first; i < end; ++i) data += (data.empty() ? "" : ",") + items[i]->text;
  const auto id_at = [&](size_t i) { return first < end ? Json(items[i]->id) : Json(); };
  return fmt::format(R"({{"object":"list","data":[{}],"first_id":{},"last_id":{},"has_more":{}}})", data,
                     dump(id_at(first)), dump(id_at(end - 1)), end < items.size());
}

}  // namespace

ApiResult<JsonDocument> Api::earlier_items(const Call& call, const std::string& id) {
  if (id.empty()) return JsonDocument(Json::array());
  if (!response_store_.enabled())
    return bad_field("previous_response_id", "unsupported_parameter",
                     "'previous_response_id' is not supported: this server keeps no responses "
                     "(--responses-store-bytes); send the whole conversation as 'input'");
  QUIRE_TRY(const std::vector<StoredPtr> earlier,
            response_store_.history(call.responder->record().key, id, options_.json.max_bytes));
  // As one document, so that the limits of a body hold for all of it.
  std::string text = "[";
  const auto add = [&](const std::string& item) { text += (text.size() > 1 ? "," : "") + item; };
  for (const StoredPtr& r : earlier) {
    for (const StoredResponse::Item& item : r->input) add(item.text);
    for (const std::string& item : r->output) add(item);
  }
  return parse_json(text + "]", options_.json);
}

ApiStatus Api::ResponsesRoutes::create(Api& api, Call& call) {
  QUIRE_TRY(JsonDocument document, api.body(call));
  const ModelContext& model = *call.loaded.model;
  StoredResponse kept{.id = "resp_" + random_hex(), .previous = text_at(*document, "previous_response_id")};
  QUIRE_TRY(JsonDocument earlier, api.earlier_items(call, kept.previous));
  const bool store = api.response_store_.enabled() && document->value("store", Json()) != false;
  if (store) kept.input = items_of(*document);
  QUIRE_TRY(ResponsesRequest r, parse_responses_request(std::move(document), model.limits(), std::move(earlier)));
  r.echo.fields["store"] = store;
  const bool stream = r.chat.params.stream;
  const auto envelope =
      std::make_shared<ResponsesEnvelope>(ResponsesEnvelope{.id = kept.id,
                                                            .model = model.told_name(r.chat.params.model),
                                                            .custom = std::move(r.echo.custom),
                                                            .echo = std::move(r.echo.fields)});
  if (r.chat.params.request.sampling.logprobs >= 0) envelope->tokenizer = &model.tokenizer();
  if (store) {
    const int key = call.responder->record().key;
    envelope->keep = [&api, key, id = kept.id](const Json& response) {
      std::vector<std::string> output;
      for (const Json& item : response["output"]) output.push_back(dump(item));
      api.response_store_.finish(key, id, std::move(output), dump(response));
    };
    api.response_store_.begin(key, std::move(kept));
  }
  // Codex makes a conversation shorter when an event tells it to, and gives up at a status.
  call.tell = [responder = call.responder, envelope, stream](const ApiError& error) {
    if (!stream || !error.overflow) return false;
    stream_failure(responder, *responses_writer(std::move(*envelope)), error);
    return true;
  };
  return api.converse(call, std::move(r.chat), [envelope](const GenerationPlan&, const GenerationParams&) {
    return responses_writer(std::move(*envelope));
  });
}

ApiStatus Api::ResponsesRoutes::stored(Api& api, Call& call) {
  const Place at = place_of(call.request);
  if (!at.rest.empty() && at.rest != "/input_items") return unknown_path(call.request.path);
  const StoredPtr found = api.response_store_.find(call.responder->record().key, at.id);
  if (found == nullptr) return not_found(at.id);
  if (at.rest.empty()) {
    answer(call, HttpResponse{.body = found->body});
    return {};
  }
  QUIRE_TRY(std::string list, list_items(*found, call.request.query));
  answer(call, HttpResponse{.body = std::move(list)});
  return {};
}

ApiStatus Api::ResponsesRoutes::erase(Api& api, Call& call) {
  const Place at = place_of(call.request);
  if (!at.rest.empty()) return unknown_path(call.request.path);
  if (!api.response_store_.erase(call.responder->record().key, at.id)) return not_found(at.id);
  answer(call, {{"id", at.id}, {"object", "response"}, {"deleted", true}});
  return {};
}

}  // namespace quire::server
