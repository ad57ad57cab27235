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
ApiResult<ResponsesRequest> parse_responses_request(JsonDocument body, const RequestLimits& limits);

}  // namespace quire::server
