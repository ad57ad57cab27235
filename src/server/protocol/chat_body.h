// A body of another API on its way to become that of a chat completion, which is the one form of a conversation that is
// parsed further. Whatever has no place in it is refused by name, or noted as ignored.
#pragma once

#include <initializer_list>
#include <string>

#include "server/protocol/fields.h"

namespace quire::server {

class ChatBody {
 public:
  // `fields` reads the client's body, and must outlive this.
  explicit ChatBody(Fields& fields);

  // The client's member as ours, of the same name or another, whatever it is.
  void pass(std::string_view theirs, std::string_view ours);
  void pass(std::initializer_list<std::string_view> names);
  // What every API of this server takes beside its own fields: samplers, priority, cache_salt, ...
  void pass_extensions();
  void set(std::string_view name, Json value) { (*body_)[std::string(name)] = std::move(value); }
  bool has(std::string_view name) const { return body_->contains(std::string(name)); }

  Json& messages() { return (*body_)["messages"]; }
  // Opens a message, to be filled in.
  Json& add_message(std::string_view role);
  // Tools in the form of a chat completion, their names and schemas moved.
  void add_tool(Json name, Json description, Json parameters, bool strict);

  // After everything: ends the reading, and gives the body away.
  ApiResult<JsonDocument> take();

 private:
  Fields& fields_;
  JsonDocument body_;
};

// {"type": "text", "text", "cache_control"}: the last one only if it is there.
Json text_part(Json text, Json* cache_control = nullptr);

}  // namespace quire::server
