// The bodies of POST /v1/messages and /v1/messages/count_tokens, of Anthropic's Messages API.
#pragma once

#include "server/protocol/chat_request.h"

namespace quire::server {

// `counts`: only the prompt's tokens are asked for, and "max_tokens" may be missing.
ApiResult<ChatRequest> parse_anthropic_request(JsonDocument body, const RequestLimits& limits, bool counts);

}  // namespace quire::server
