// Chat templates: the Jinja2 program in a model file that turns a conversation into the text of a prompt.
//
//   QUIRE_TRY(auto chat, ChatTemplate::parse(source));
//   QUIRE_TRY(std::string prompt, chat.render(messages, tools, {.add_generation_prompt = true, .eos_token =
//   "</s>"}));
//
// Output equals that of Jinja2 3.1 with the settings of Hugging Face's apply_chat_template: trim_blocks and
// lstrip_blocks, loop controls, `{% generation %}`, tojson by json.dumps(ensure_ascii=False), raise_exception
// and strftime_now, immutable sandbox. Templates are programs from strangers: they see nothing but their
// variables, and jinja::Limits bounds what they may cost. Not supported: include, import, extends, block,
// autoescape.
#pragma once

#include <algorithm>
#include <ctime>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/result.h"
#include "jinja/limits.h"
#include "jinja/text.h"

namespace quire {

struct TemplateOptions {
  bool add_generation_prompt = false;
  std::optional<std::string> bos_token{}, eos_token{};  // absent: undefined in the template
  // Further variables, such as {"enable_thinking", true}: a JSON object, or null for none. They win over the
  // others.
  const nlohmann::ordered_json* extra = nullptr;
  // What strftime_now() prints, as localtime_r fills it. Without it a template that asks for the date fails.
  std::optional<std::tm> now{};
};

// The text of a prompt. What messages, tools and further variables brought into it is told apart from what the
// template wrote, down to the byte: control tokens that users write are text (EncodeOptions::plain). A message's role
// counts as the template's where it is one of those that everybody knows ("user", ...): templates make control tokens
// of it.
struct RenderedPrompt {
  std::string text;
  std::vector<jinja::ByteRange> foreign;  // in order, apart from each other
};

// Whose messages a template takes.
struct TemplateRoles {
  bool any = true;                 // everybody's, whatever the role is called
  std::vector<std::string> known;  // if not: theirs

  bool take(std::string_view role) const { return any || std::find(known.begin(), known.end(), role) != known.end(); }
};

class ChatTemplate {
 public:
  // Faults of the source are kModelFile errors and name the line.
  static Result<ChatTemplate> parse(std::string_view source, const jinja::Limits& limits = {});

  // messages: an array of {role, content, tool_calls, ...}. tools: an array, or null. Both reach the template
  // as they are. Thread-safe. Errors are kRequest: the template refused the conversation, failed on it or hit
  // a limit.
  Result<RenderedPrompt> render(const nlohmann::ordered_json& messages, const nlohmann::ordered_json& tools,
                                const TemplateOptions& options) const;
  // The same with exactly these variables, a JSON object: no messages, tools or tokens are added.
  Result<RenderedPrompt> render_variables(const nlohmann::ordered_json& variables,
                                          const std::optional<std::tm>& now = std::nullopt) const;

  // Whether the source reads a variable of this name anywhere.
  bool references(std::string_view name) const;
  // Found out by rendering short conversations: a role is known whose message appears in the prompt. Of the usual
  // roles also those are known that the source names, as they may need what a trial does not have.
  TemplateRoles roles() const;
  bool references_tools() const { return references("tools"); }
  bool references_enable_thinking() const { return references("enable_thinking"); }

 private:
  struct Parsed;
  explicit ChatTemplate(std::shared_ptr<const Parsed> parsed) : parsed_(std::move(parsed)) {}
  std::shared_ptr<const Parsed> parsed_;
};

}  // namespace quire
