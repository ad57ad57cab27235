// A field that holds a text, token ids, or a list of either.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "server/protocol/generation_params.h"

namespace quire::server {

// Text still to be tokenized, or tokens.
using Prompt = std::variant<std::string, std::vector<TokenId>>;

// What a text is filled in before: the prompt is what stands in front of it.
struct Infill {
  struct File {
    std::string name{}, text{};
  };
  std::string suffix{};       // what follows the text
  std::string begun{};        // the beginning of the text, that it goes on from
  std::vector<File> files{};  // others, for the model to know
  bool trim = false;          // what is far from the text is left out where the context has no room for all
};

// How many a field may hold, and the operator's flag that says so.
struct PromptLimit {
  int most;
  std::string_view flag;
};

// At least one, moved out of `v`. `name` is the field's, for messages.
ApiResult<std::vector<Prompt>> parse_prompts(std::string_view name, Json& v, const RequestLimits& limits,
                                             PromptLimit limit);

}  // namespace quire::server
