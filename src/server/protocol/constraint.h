// The one place where a request's wish that its answer have a certain form arrives: a JSON schema, a grammar, a call
// that must be made. Nothing here can hold a model to it. A client that insists is refused by name, because an answer
// without the effect would be taken for one with it; one that does not is served as if it had not asked.
#pragma once

#include <string_view>

#include "server/protocol/fields.h"

namespace quire::server {

// `field`: as `f` names it; `what`: of the wish, for the message.
void ask_constraint(Fields& f, std::string_view field, std::string_view what);

// Takes "response_format", "structured_outputs", "guided_*", "grammar" and their kin out of a body.
void read_constraints(Fields& f);

}  // namespace quire::server
