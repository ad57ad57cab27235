// Messages of Anthropic's API, whole and as server-sent events.
#pragma once

#include "server/answer_writer.h"

namespace quire::server {

struct AnthropicEnvelope {
  std::string model;
};

std::unique_ptr<AnswerWriter> anthropic_writer(AnthropicEnvelope envelope);

}  // namespace quire::server
