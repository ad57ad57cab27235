// Pictures among the parts of messages, in the forms of all APIs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "server/protocol/body_budget.h"
#include "server/protocol/json.h"

namespace quire::server {

// A file that a client sent, or one that it named, which has no bytes until it was fetched.
struct PictureFile {
  std::vector<uint8_t> bytes;
  std::string where;       // "messages[0].content[1]", for messages
  std::string url, field;  // where it is to be fetched, and what of the request says so; empty: its bytes are here
  BodyShare share;         // what it takes of the memory for fetched ones
};
using PicturePtr = std::shared_ptr<const PictureFile>;

// Whether a part is of a type that stands for a picture.
bool is_picture(const Json& part);

// What such a part is on its way into a chat: {"type": "image", "data": BYTES, "where", "cache_control"}, or "link" in
// place of "data", with the bytes of a URL of MediaPolicy's schemes, and "field". JSON from the network has no value of
// bytes, so that nobody else can have written one. Errors: the picture is no base64, at a URL of another scheme, or
// missing.
ApiResult<Json> picture_part(Json& part, const std::string& where);
// The same of the text of a file alone, or of its URL.
ApiResult<Json> picture_of_base64(Json& text, const std::string& where);
// The file of a part that one of these made; null for any other part.
PicturePtr take_picture(Json& part);

}  // namespace quire::server
