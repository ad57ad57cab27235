// Grammars as Lark writes them (`name: "text" | other`), which vLLM takes beside those with `::=`.
#pragma once

#include <string>
#include <string_view>

#include "core/result.h"

namespace quire {

// Whether a grammar is written so: no line of it has `::=`, comments aside.
bool is_lark(std::string_view grammar);

// The same grammar in the part of Lark's syntax that the library knows: texts and regular expressions are written anew
// as it reads them, and priorities, which say how to read a text and not which there are, are left out. Errors
// (Fault::kRequest), with the line: what cannot be translated. What the library refuses by itself (templates, %declare,
// %override, %extend, imports from other files) stays. Nothing recurses.
Result<std::string> plain_lark(std::string_view grammar);

}  // namespace quire
