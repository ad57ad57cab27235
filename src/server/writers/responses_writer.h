// Answers of OpenAI's Responses API: a response with its items, whole and as server-sent events.
#pragma once

#include <functional>
#include <set>

#include "server/answer_writer.h"

namespace quire::server {

struct ResponsesEnvelope {
  std::string id, model;
  std::set<std::string> custom;                              // tools that take one text
  Json echo;                                                 // of the request: members of the response
  const Tokenizer* tokenizer = nullptr;                      // for log-probabilities of the text; null: none are told
  std::function<void(const Json& response)> keep = nullptr;  // is given the response when it is over; may be empty
};

std::unique_ptr<AnswerWriter> responses_writer(ResponsesEnvelope envelope);

}  // namespace quire::server
