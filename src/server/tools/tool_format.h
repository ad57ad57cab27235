// How models write calls of tools. A format is data: what begins a call, in which syntax it stands, what ends it.
#pragma once

#include <span>
#include <string_view>

namespace quire::server {

// What may follow what begins a call; several may.
struct CallSyntax {
  bool object = false;      // {"name": ..., "arguments": {...}}, one after the other or in a list
  bool function = false;    // <function=NAME><parameter=KEY>VALUE</parameter></function>
  bool name = false;        // NAME{...}, NAME[ARGS]{...}
  bool known_only = false;  // it is a call only if a tool of that name is offered: otherwise it may well be text
};

struct CallTrigger {
  std::string_view text;  // "<tool_call>"; "<function=" stands for itself and its syntax
  std::string_view end;   // "</tool_call>"; empty: the call's own end
  CallSyntax syntax;
};

struct ToolFormat {
  std::string_view name;
  std::string_view also;  // further names, separated by spaces: those of vLLM's parsers that read the same text
  std::span<const CallTrigger> triggers;
  bool bare = false;               // an answer may begin with { or [ and be calls from there on
  bool harmony = false;            // channels: <|channel|>commentary to=functions.NAME<|message|>{...}
  bool control_tokens = false;     // what it is made of are control tokens, which texts hide otherwise
  bool short_ids = false;          // ids of calls have 9 letters and digits, as the template demands
  std::string_view first, second;  // a chat template that has these texts is of this format; empty: any
};

// All of them; the last one takes every template.
std::span<const ToolFormat> tool_formats();
// By its name or one of vLLM's; null: there is none.
const ToolFormat* find_tool_format(std::string_view name);
// The one that a chat template's text belongs to.
const ToolFormat& tool_format_of(std::string_view chat_template);

}  // namespace quire::server
