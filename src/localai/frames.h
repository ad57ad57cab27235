// The bytes between the writer of an answer and its call: replies one after the other, each with its length, and an
// error in place of what would have followed.
#pragma once

#include <backend.pb.h>

#include <string>
#include <string_view>
#include <variant>

#include "server/protocol/api_error.h"

namespace quire::localai {

std::string frame_of(const backend::Reply& reply);
std::string frame_of(const server::ApiError& error);

// A reply as its bytes.
using Frame = std::variant<std::string, server::ApiError>;
// Takes the first one off. `bytes`: frames that frame_of() made, at least one.
Frame take_frame(std::string_view& bytes);

}  // namespace quire::localai
