// Chat and text completions of the OpenAI API, whole and as server-sent events.
#pragma once

#include "server/answer_writer.h"

namespace quire::server {

// What every object says of its request.
struct OpenAiEnvelope {
  std::string model, fingerprint;
  bool include_usage = false;                 // a last chunk with the usage
  bool continuous_usage = false;              // the usage so far in every chunk
  bool token_ids = false;                     // answers tell their tokens, and those of their prompts
  bool answer_logprobs = false;               // log-probabilities are told by token ids, and in no other form
  std::vector<SharedTokens> prompt_ids = {};  // of each prompt, where they are told
  size_t answers_each = 1;                    // to a prompt; those to one stand together
};

// {"content": [{"token", "logprob", "bytes", "top_logprobs": [{"token", "logprob", "bytes"}]}], "refusal"}
Json chat_logprobs(const Tokenizer& tokenizer, const std::vector<TokenReport>& tokens);

// {"index", "message": {"role", "content", "reasoning_content", "tool_calls"}, "logprobs", "finish_reason"}; beside
// them "prompt_logprobs", if it is wanted. `tokenizer` must outlive the writer.
std::unique_ptr<AnswerWriter> chat_writer(OpenAiEnvelope envelope, const Tokenizer& tokenizer, bool logprobs);
// {"index", "text", "logprobs", "finish_reason", "prompt_logprobs"}, the last one if it is wanted. `echoes`: text that
// stands before the answer of that index, or empty.
std::unique_ptr<AnswerWriter> completion_writer(OpenAiEnvelope envelope, const Tokenizer& tokenizer, bool logprobs,
                                                std::vector<std::string> echoes);

}  // namespace quire::server
