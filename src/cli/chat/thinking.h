// What a model thought, apart from what it answers.
#pragma once

#include <string>
#include <string_view>

#include "server/protocol/reasoning.h"

namespace quire::cli {

struct SplitAnswer {
  std::string thinking, answer;
};

// `prompt`: its text, control tokens included; it may end in an open <think>.
inline SplitAnswer split_thinking(std::string_view prompt, std::string_view text) {
  server::ReasoningSplitter splitter(server::ends_in_reasoning(prompt));
  server::ReasoningSplitter::Output first = splitter.push(text);
  const server::ReasoningSplitter::Output last = splitter.flush();
  return {first.reasoning + last.reasoning, first.content + last.content};
}

}  // namespace quire::cli
