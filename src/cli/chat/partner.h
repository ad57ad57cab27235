// Who answers in a conversation at the terminal: a model in this process, or a server.
#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "cli/chat/commands.h"
#include "cli/chat/console.h"
#include "cli/chat/conversation.h"

namespace quire::cli {

struct ChatAnswer {
  std::string finish;                     // "stop", "length", "cancelled", ...
  int64_t prompt_tokens = 0, tokens = 0;  // 0: not known
  double rate = 0;                        // tokens a second after the first; 0: not known
  bool context_full = false;              // finish is "length", and a larger limit would not help
};

// A conversation that leaves no room for an answer. 0: not known.
struct ChatTooLong {
  int64_t tokens = 0, context = 0;
};

class ChatPartner {
 public:
  virtual ~ChatPartner() = default;

  virtual std::string name() const = 0;    // of the model
  virtual std::string about() const = 0;   // lines "  name   value" for /show
  virtual int64_t context() const = 0;     // in tokens; 0: not known
  virtual int64_t vocabulary() const = 0;  // for the checks of /set
  virtual Result<std::string> chat_template() const = 0;

  // Of the whole conversation as a prompt; 0: not known.
  virtual Result<int64_t> count_tokens(const Conversation& conversation, const ChatSettings& settings) const = 0;
  // Writes the answer to the conversation, whose last turn is the user's, as it comes, and ends it. Ctrl-C, which a
  // CancelKey notes, stops it.
  virtual Result<std::variant<ChatAnswer, ChatTooLong>> answer(const Conversation& conversation,
                                                               const ChatSettings& settings, Console& console) = 0;
};

}  // namespace quire::cli
