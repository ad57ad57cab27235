// The prompt with which a model fills in a text: prefix, suffix, and behind them what it goes on from.
#pragma once

#include "server/model_context.h"

namespace quire::server {

// The texts are texts: control tokens in them are none. With `infill.trim`, what is too long for the context loses the
// other files' beginnings first, then what is far from the gap: a quarter of the room is the suffix's where both would
// take more. Errors: 400 where the model has no tokens for it, or all of it is needed and does not fit.
ApiResult<EncodedPrompt> encode_infill(const ModelContext& model, Prompt prefix, const Infill& infill,
                                       const GenerationParams& params);

}  // namespace quire::server
