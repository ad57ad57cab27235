// quire serve: a model over HTTP, for clients of the OpenAI API.
#include "server/serve.h"

#include "cli/commands.h"
#include "command/serve_flags.h"

namespace quire::cli {

Action add_serve(Flags& flags) {
  auto serve = std::make_shared<ServeFlags>();
  serve->add(flags);
  return [serve]() -> Status {
    QUIRE_TRY(const server::ServeOptions o, serve->parsed());
    return server::serve(o);
  };
}

}  // namespace quire::cli
