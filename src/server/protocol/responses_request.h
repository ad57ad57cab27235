// The body of POST /v1/responses, of OpenAI's Responses API.
#pragma once

#include <set>
#include <string>

#include "server/protocol/chat_request.h"

namespace quire::server {

// What a response needs to know of its request beside the conversation.
struct ResponsesEcho {
  std::set<std::string> custom;  // tools that take one text instead of an object
  Json fields = Json::object();  // that the response repeats
};
struct ResponsesRequest {
  ChatRequest chat;
  ResponsesEcho echo;
};
// `earlier`: an array of items that stand before the request's own, of the responses that it goes on from.
ApiResult<ResponsesRequest> parse_responses_request(JsonDocument body, const RequestLimits& limits,
                                                    JsonDocument earlier = Json::array());

}  // namespace quire::server
