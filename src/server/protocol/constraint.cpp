#include "server/protocol/constraint.h"

namespace quire::server {

void ask_constraint(Fields& f, std::string_view field, std::string_view what) {
  f.fail(bad_field(f.qualified(field), "unsupported_parameter", "'{}' is not supported: {}", f.qualified(field), what));
}

void read_constraints(Fields& f) {
  constexpr std::string_view kWhat = "structured output is not supported by this server yet";
  for (const char* name : {"guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs",
                           "structural_tag", "grammar", "json_schema", "regex", "ebnf"})
    if (f.take(name) != nullptr) ask_constraint(f, name, kWhat);
  const Json* format = f.take("response_format");
  if (format != nullptr && *format != Json{{"type", "text"}}) ask_constraint(f, "response_format", kWhat);
}

}  // namespace quire::server
