// Pictures among the parts of messages, in the forms of all APIs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "server/protocol/json.h"

namespace quire::server {

// A file that a client sent.
struct PictureFile {
  std::vector<uint8_t> bytes;
  std::string where;  // "messages[0].content[1]", for messages
};
using PicturePtr = std::shared_ptr<const PictureFile>;

// Whether a part is of a type that stands for a picture.
bool is_picture(const Json& part);

// What such a part is on its way into a chat: {"type": "image", "data": BYTES, "where", "cache_control"}. JSON from the
// network has no value of bytes, so that nobody else can have written one. Errors: the picture is elsewhere (only what
// the request itself has is read), is no base64, or is missing.
ApiResult<Json> picture_part(Json& part, const std::string& where);
// The same of the text of a file alone.
ApiResult<Json> picture_of_base64(Json& text, const std::string& where);
// The file of a part that one of these made; null for any other part.
PicturePtr take_picture(Json& part);

}  // namespace quire::server
