// Answers of /infill, as llama.cpp has them: whole and as server-sent events.
#pragma once

#include "server/answer_writer.h"

namespace quire::server {

// {"content", "model", "stop", "stop_type", "tokens_predicted", "tokens_evaluated", "tokens_cached"}; in a stream all
// but the first two and "stop" come with the last event.
std::unique_ptr<AnswerWriter> infill_writer(std::string model);

}  // namespace quire::server
