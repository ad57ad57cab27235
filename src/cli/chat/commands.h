// What is typed in a conversation beside messages: lines that begin with a slash.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/result.h"
#include "engine/sampling_defaults.h"
#include "ops/sampling/params.h"

namespace quire::cli {

struct ChatCommand {
  enum class Kind { kMessage, kHelp, kBye, kClear, kSystem, kSet, kSave, kLoad, kRegen, kEdit, kRead, kImage, kShow };
  Kind kind = Kind::kMessage;
  std::string argument;  // without white space around it; of a message all of it
};

// An unknown command is an error, with the one that is most like it. A message that begins with a slash has a
// space before it.
Result<ChatCommand> parse_chat_command(std::string_view text);

// A list of all commands, a line each, of at most so many columns (0: any number).
std::string chat_help(int columns);

// What the last word of a line may become.
struct Completion {
  size_t typed = 0;                // bytes of the word that are there
  std::vector<std::string> words;  // whole words that begin so, sorted; what ends one (a blank, a slash) included
};

// Of a line up to the cursor: commands, what /set and /show take, and files. Of a message nothing.
Completion complete_chat_line(std::string_view line);

// What /set changes.
struct ChatSettings {
  SamplingParams sampling;
  int64_t max_tokens = -1;  // -1: until the answer or the context ends
  bool think = false, stats = true, wrap = true;
  // Of a server: only what was given is asked for, and the rest is its own choice.
  bool server = false;
  std::set<std::string> given;  // by the command line and by /set
  // How the model is sampled where nobody says, answering at once and thinking; `think` switches between the two.
  SamplingDefaults plain, thinking;
  std::string source;  // who recommends it; empty: nobody

  // "temperature 0.7". Errors name what is allowed; nothing is changed then.
  Status set(std::string_view assignment, int64_t vocab_size);
  // Every name with its value, a line each.
  std::string list() const;
};

}  // namespace quire::cli
