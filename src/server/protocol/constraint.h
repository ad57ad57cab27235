// The wish that an answer have a certain form: a JSON schema, a regular expression, a grammar. Several servers have
// names for it; here they become one.
#pragma once

#include <optional>
#include <string>

#include "constraint/grammar.h"
#include "server/protocol/fields.h"

namespace quire::server {

struct AskedForm {
  GrammarSpec spec;     // of a schema: its text as the client wrote it
  bool strict = false;  // what of a schema cannot be enforced is refused; otherwise the client is told of it
  std::string field;    // that asks for it
  // Objects whose schema says nothing of additional properties have none, whatever the server has else.
  bool no_additional_properties = false;
};

// Takes "response_format", "structured_outputs", "guided_*", "grammar" and their kin out of a body. More than one is an
// error. `max_bytes`: of what is asked for, as text.
std::optional<AskedForm> read_form(Fields& f, size_t max_bytes);

}  // namespace quire::server
