// Where the marks of a conversation ("cache_control") come to stand in its prompt.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "server/protocol/conversation.h"
#include "tokenizer/chat_template.h"
#include "tokenizer/tokenizer.h"

namespace quire::server {

// How the messages of a conversation become the text of a prompt.
using RenderMessages = std::function<Result<RenderedPrompt>(const Json& messages)>;

// For each mark that is found: how many bytes of `text`, which the conversation was rendered to, stand before it,
// white space in front of it left out. What a template does to a content nobody knows but the template: it is
// rendered once more with a word that nobody writes at each mark. Where that changes more than where the words stand,
// or one of them does not come out exactly once, there is no such place, and the mark is left out. The words stay in
// the conversation, which may be large and is not copied: it is of no further use.
std::vector<size_t> find_marks(Conversation& conversation, const std::string& text, const RenderMessages& render);

// How many tokens of a prompt do not depend on what follows after `bytes` of its text: those that the beginning alone
// has too.
int64_t tokens_before(const Tokenizer& tokenizer, const RenderedPrompt& prompt, size_t bytes,
                      std::span<const TokenId> tokens);

}  // namespace quire::server
