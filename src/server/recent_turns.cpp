#include "server/recent_turns.h"

#include <algorithm>

namespace quire::server {
namespace {

bool has_role(const Json& message, std::string_view role) {
  return message["role"] == role;
}

// What may be the first message that is not a system's: questions, and where nobody asks again what may follow one, but
// no result without its call.
std::vector<size_t> beginnings(const Json& messages) {
  std::vector<size_t> all;
  size_t last_question = 0;
  for (size_t i = 0; i < messages.size(); ++i)
    if (has_role(messages[i], "user")) last_question = i;
  for (size_t i = 0; i < messages.size(); ++i) {
    const bool behind = i > last_question && !has_role(messages[i], "tool") && !has_role(messages[i], "system");
    if (has_role(messages[i], "user") || behind || i + 1 == messages.size()) all.push_back(i);
  }
  return all;
}

// The conversation from this message on, and the system messages before it.
Conversation from(const Conversation& c, size_t first) {
  Conversation cut;
  cut.tools = JsonDocument(Json(*c.tools));
  cut.template_variables = JsonDocument(Json(*c.template_variables));
  cut.add_generation_prompt = c.add_generation_prompt;
  cut.continue_final = c.continue_final;
  cut.pictures = c.pictures;
  Json kept = Json::array();
  for (size_t i = 0; i < c.messages->size(); ++i) {
    if (i < first && !has_role((*c.messages)[i], "system")) continue;
    for (const CacheMark& mark : c.marks)
      if (mark.message == i) cut.marks.push_back({kept.size(), mark.offset});
    kept.push_back((*c.messages)[i]);
  }
  cut.messages = JsonDocument(std::move(kept));
  return cut;
}

}  // namespace

ApiResult<RecentTurns> encode_recent(const ModelContext& model, Conversation c, const GenerationParams& params) {
  const int64_t context = model.context();
  const int64_t answer = std::clamp<int64_t>(params.max_tokens.value_or(context), 1, std::max<int64_t>(context / 4, 1));
  const auto fits = [](const ApiResult<EncodedPrompt>& p, int64_t most) {
    return p.ok() && std::ssize(p->tokens) <= most;
  };
  const std::vector<size_t> firsts = beginnings(*c.messages);
  ApiResult<EncodedPrompt> whole = model.encode(from(c, 0));
  const bool too_long = whole.ok() ? !fits(whole, context - 1) : whole.error().overflow.has_value();
  if (!too_long || firsts.empty()) {
    if (!whole.ok()) return whole.take_error();
    return RecentTurns{std::move(*whole), 0};
  }
  // The longest of those that are short enough: fewer turns have fewer tokens.
  size_t low = 0, high = firsts.size() - 1;
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if (fits(model.encode(from(c, firsts[middle])), context - answer))
      high = middle;
    else
      low = middle + 1;
  }
  Conversation cut = from(c, firsts[low]);
  const size_t dropped = c.messages->size() - cut.messages->size();
  QUIRE_TRY(EncodedPrompt prompt, model.encode(std::move(cut)));
  return RecentTurns{std::move(prompt), dropped};
}

}  // namespace quire::server
