// From the events of an answer to replies: text, reasoning and calls of tools as chat_deltas, with the text in
// `message` too.
#pragma once

#include <backend.pb.h>

#include <atomic>
#include <memory>

#include "server/answer_writer.h"

namespace quire::localai {

// Of the answer that ended last, for GetMetrics. Any thread.
struct LastAnswer {
  std::atomic<float> tokens_per_second = 0.0f;
  std::atomic<int32_t> generated_tokens = 0, prompt_tokens = 0;
};

// A whole answer is a Reply's bytes; the pieces of a stream are frames (frames.h). `tokenizer` must outlive the writer.
std::unique_ptr<server::AnswerWriter> predict_writer(const Tokenizer& tokenizer, bool logprobs,
                                                     std::shared_ptr<LastAnswer> last);

}  // namespace quire::localai
