#include "localai/frames.h"

#include <cstring>

namespace quire::localai {
namespace {

// A number, then so many bytes. The number is 0 for a reply, else the status of an error whose message the bytes are.
struct Head {
  int32_t status = 0;
  uint32_t bytes = 0;
};

std::string with_head(int status, const std::string& payload) {
  const Head head{status, static_cast<uint32_t>(payload.size())};
  std::string frame(sizeof(head), '\0');
  std::memcpy(frame.data(), &head, sizeof(head));
  return frame + payload;
}

}  // namespace

std::string frame_of(const backend::Reply& reply) {
  return with_head(0, reply.SerializeAsString());
}

std::string frame_of(const server::ApiError& error) {
  return with_head(error.status, error.message);
}

Frame take_frame(std::string_view& bytes) {
  Head head;
  std::memcpy(&head, bytes.data(), sizeof(head));
  const std::string_view payload = bytes.substr(sizeof(head), head.bytes);
  bytes.remove_prefix(sizeof(head) + head.bytes);
  if (head.status != 0) return server::ApiError{head.status, std::string(payload), "", ""};
  return std::string(payload);
}

}  // namespace quire::localai
