// Calls of tools as grammars: what a model has to write so that its calls are read as such.
#pragma once

#include <optional>
#include <string>

#include "server/protocol/json.h"
#include "server/tools/tool_format.h"
#include "server/tools/tool_set.h"
#include "tokenizer/tokenizer.h"

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

// The grammars of one model's way of writing calls. Formats that are made of control tokens need the model's own: no
// other text spells them.
class CallGrammars {
 public:
  CallGrammars(const ToolFormat& format, const Tokenizer& tokenizer) : format_(format), tokenizer_(tokenizer) {}

  // Texts of one call of these tools or, `parallel`, several. None: the format's calls cannot be told by a grammar, or
  // the model lacks the tokens that they are made of.
  std::optional<CallGrammar> required(std::span<const CallSchema> tools, bool parallel) const;
  // Of a model that may call: what follows where it begins a call, or the whole answer. None also where a call begins
  // with no text of its own.
  std::optional<CallGrammar> free(std::span<const CallSchema> tools) const;
  // Of an answer that is either one call (`parallel`: or several) and nothing else, or of a form: a part of a
  // structural tag. None as for required().
  std::optional<CallGrammar> or_form(std::span<const CallSchema> tools, bool parallel, const Json& form) const;

 private:
  std::optional<Json> control_tokens(std::span<const std::string_view> texts, Json& by_text) const;
  std::optional<Json> mistral(std::span<const CallSchema> tools, bool required, bool parallel) const;
  enum class Otherwise { kCannotBe, kAnything, kForm };  // an answer without a call
  std::optional<Json> harmony(std::span<const CallSchema> tools, Otherwise otherwise, const Json& form) const;
  std::optional<Json> texts(std::span<const CallSchema> tools, bool parallel) const;

  const ToolFormat& format_;
  const Tokenizer& tokenizer_;
};

}  // namespace quire::server
