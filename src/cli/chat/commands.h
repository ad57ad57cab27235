// What is typed in a conversation beside messages: lines that begin with a slash.
#pragma once

#include <string>
#include <string_view>

#include "core/result.h"
#include "ops/sampling/sampling.h"

namespace quire::cli {

struct ChatCommand {
  enum class Kind { kMessage, kHelp, kBye, kClear, kSystem, kSet, kSave, kLoad };
  Kind kind = Kind::kMessage;
  std::string argument;  // without white space around it; of a message all of it
};

// An unknown command is an error, with the one that is most like it. A message that begins with a slash has a
// space before it.
Result<ChatCommand> parse_chat_command(std::string_view text);

// A list of all commands, a line each.
std::string chat_help();

// What /set changes.
struct ChatSettings {
  SamplingParams sampling;
  int64_t max_tokens = 512;
  bool think = false, stats = true;

  // "temperature 0.7". Errors name what is allowed; nothing is changed then.
  Status set(std::string_view assignment, int64_t vocab_size);
  // Every name with its value, a line each.
  std::string list() const;
};

}  // namespace quire::cli
