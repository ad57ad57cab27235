// The parts and blocks that messages are made of, in the forms of all APIs, as text.
#pragma once

#include <string>
#include <string_view>

#include "server/protocol/fields.h"
#include "server/protocol/generation_params.h"

namespace quire::server {

struct PartText {
  std::string text;
  bool reasoning = false;  // it is what a model thought, and no part of what it said
  bool plain = false;      // the part's members are those of a text: others are unknown fields
};

// What a part that is no picture says to a model: its text, where it has one (also within documents, search results,
// and what a vendor's own tools were asked and found), or else words in its place, "[audio left out: this model reads
// text only]", which `ignored` notes as left out. A type that nobody knows is no error: a history that has it must not
// be refused for ever. Errors: no object, or a text that is none; where unknown fields are refused, whatever would be
// left out. `where`: "messages[0].content[1]".
// `images`: the model reads these too, and the words say so.
ApiResult<PartText> read_part_text(Json& part, const std::string& where, bool images, IgnoredFields& ignored);

// A part as one of a chat's content: {"type": "text", "text", "cache_control"}, or where the model takes pictures and
// the part is one, what picture_part() makes of it.
ApiResult<Json> read_chat_part(Json& part, const std::string& where, const RequestLimits& limits,
                               IgnoredFields& ignored);

// The words for images that stand beside a text, as Ollama's do: an array, or whatever else stands there. Empty: none
// do.
ApiResult<std::string> words_for_images(const Json* images, const std::string& where, IgnoredFields& ignored);

}  // namespace quire::server
