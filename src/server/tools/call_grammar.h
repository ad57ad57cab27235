// Calls of tools as grammars: what a model has to write so that its calls are read as such.
#pragma once

#include <optional>
#include <string>

#include "server/protocol/json.h"
#include "server/tools/tool_format.h"
#include "server/tools/tool_set.h"

namespace quire::server {

// One tool, and the schema that its arguments are held to, as text.
struct CallSchema {
  const Tool* tool = nullptr;
  std::string schema;
};

struct CallGrammar {
  std::string structural_tag;  // JSON (GrammarKind::kStructuralTag)
  std::string after;           // what begins a call, and the grammar does not hold; empty: it holds everything
};

// Texts of one call of these tools or, `parallel`, several. None: the format's calls cannot be told by a grammar.
std::optional<CallGrammar> required_calls(const ToolFormat& format, std::span<const CallSchema> tools, bool parallel);
// What follows where a model that may call begins a call. None also where a call begins with no text of its own.
std::optional<CallGrammar> free_calls(const ToolFormat& format, std::span<const CallSchema> tools);

}  // namespace quire::server
