// What an answer must be, from what a request says: its form, the tokens it may have, and the calls that it must make,
// in the model's own way of writing calls.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "constraint/constrained_output.h"
#include "server/model_context.h"
#include "server/protocol/chat_request.h"

namespace quire::server {

struct AnswerConstraint {
  std::shared_ptr<const Constraint> constraint;  // null: there is none
  std::vector<std::string> unenforced;           // what of a schema is not enforced, though nothing was refused
  const char* kind = "";                         // of the constraint, for labels of metrics; empty: there is none
};

// Both wait until what they need is compiled, for `asker`, on a thread of the pool (RequestPool::Waits).
// Of a text that goes on behind a prompt.
ApiResult<AnswerConstraint> constrain_text(const ModelContext& model, const GenerationParams& params,
                                           const GrammarAsker& asker);
// Of an answer in a conversation. What must be begins behind the reasoning, if the prompt ends within it.
ApiResult<AnswerConstraint> constrain_answer(const ModelContext& model, const ChatRequest& request,
                                             bool inside_reasoning, const GrammarAsker& asker);

}  // namespace quire::server
