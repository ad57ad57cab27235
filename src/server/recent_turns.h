// Conversations that are longer than the context, cut as Ollama cuts them.
#pragma once

#include "server/model_context.h"

namespace quire::server {

struct RecentTurns {
  EncodedPrompt prompt;
  size_t dropped = 0;  // messages
};

// The prompt of a conversation without its oldest turns, as many as the context has no room for. System messages stay,
// and so does the last message. A turn begins with a user's message and is left out whole; of the last one calls go
// with their results. Where anything is left out, a quarter of the context is free for the answer (less, where the
// request asks for less, or what must stay is longer). Errors: as encode(); what must stay may still be too long.
ApiResult<RecentTurns> encode_recent(const ModelContext& model, Conversation conversation,
                                     const GenerationParams& params);

}  // namespace quire::server
