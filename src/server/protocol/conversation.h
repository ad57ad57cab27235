// The messages of a chat, as the chat template sees them.
#pragma once

#include <string>
#include <vector>

#include "server/protocol/fields.h"
#include "server/protocol/generation_params.h"
#include "server/protocol/picture.h"

namespace quire::server {

inline constexpr size_t kMaxCacheMarks = 4;  // of one request, as in Anthropic's API

// Where a part of a content that has "cache_control" ends: after so many bytes of a message's content.
struct CacheMark {
  size_t message = 0, offset = 0;
};

// The pictures of a conversation. In a content a word stands in the place of each, which nobody can have written
// because each request has another one; what a chat template makes of a picture is put there later (picture_prompt.h).
struct Pictures {
  std::string word;  // what the words of all begin with; empty: there is none
  std::vector<PicturePtr> files;

  static constexpr size_t kDigits = 6;  // of the number, which follows
  std::string word_of(size_t i) const;
};

struct Conversation {
  // [{"role", "content", ...}]: contents are strings or null (parts of text are joined by line breaks), the role
  // "developer" is "system". What else a message holds (name, tool_calls, reasoning_content) reaches the template
  // as it is; of calls the arguments in the form that the template takes.
  JsonDocument messages;
  JsonDocument tools;               // as the template sees them: an array, or null
  JsonDocument template_variables;  // chat_template_kwargs: an object, or null
  bool add_generation_prompt = true;
  bool continue_final = false;  // the answer goes on with the last message, which the prompt leaves open
  std::vector<CacheMark> marks;
  Pictures pictures;  // what words stand for
};

// Takes "messages", "add_generation_prompt", "continue_final_message", "chat_template_kwargs" and "reasoning_effort"
// out of an object; errors are kept in `f`. Header lines at the beginning of a system prompt that limits.system_headers
// names are left out, as if nobody had written them.
void read_conversation(Fields& f, const RequestLimits& limits, Conversation& c);

}  // namespace quire::server
