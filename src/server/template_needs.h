// What a chat template wants of a conversation, found out by rendering short ones, so that histories as clients send
// them reach it in a form that it takes.
#pragma once

#include <functional>
#include <string>

#include "server/protocol/conversation.h"
#include "server/protocol/generation_params.h"
#include "tokenizer/chat_template.h"

namespace quire::server {

class TemplateNeeds {
 public:
  using Render = std::function<Result<RenderedPrompt>(const Json& messages)>;
  // `takes`: the form of arguments that the template does not refuse.
  static TemplateNeeds probe(const Render& render, CallArguments takes);

  // Changes a conversation so that the template takes it, and as little as possible:
  // - System messages behind other ones become part of the first one, in order, with an empty line between them, where
  //   the template refuses them there or leaves them out.
  // - An empty user message is put behind the system messages where there is none and the template insists on one.
  // - A content that is null is left out, as transformers does, or empty where the template needs the member.
  // - An earlier turn's reasoning gets the name that the template reads ("reasoning_content", "reasoning", "thinking").
  // Cache marks stay where their text is.
  void fit(Conversation& c) const;

 private:
  bool later_systems_ = true, no_user_ = true, content_may_be_missing_ = true;
  std::string reasoning_;  // the member that the template prints; empty: none
};

}  // namespace quire::server
