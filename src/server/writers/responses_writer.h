// Answers of OpenAI's Responses API: a response with its items, whole and as server-sent events.
#pragma once

#include <set>

#include "server/answer_writer.h"

namespace quire::server {

struct ResponsesEnvelope {
  std::string model;
  std::set<std::string> custom;  // tools that take one text
  Json echo;                     // of the request: members of the response
};

std::unique_ptr<AnswerWriter> responses_writer(ResponsesEnvelope envelope);

}  // namespace quire::server
