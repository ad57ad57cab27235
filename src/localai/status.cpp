#include "localai/status.h"

#include "core/utf8.h"

namespace quire::localai {
namespace {

constexpr size_t kMostBytes = 2000;  // gRPC's headers hold 8 KiB, in which a byte may take three

grpc::StatusCode code_of(int status) {
  switch (status) {
    case 400:
    case 413:
      return grpc::StatusCode::INVALID_ARGUMENT;
    case 401:
      return grpc::StatusCode::UNAUTHENTICATED;
    case 404:
      return grpc::StatusCode::NOT_FOUND;
    case 429:
      return grpc::StatusCode::RESOURCE_EXHAUSTED;
    case 503:
      return grpc::StatusCode::UNAVAILABLE;
    case 504:
      return grpc::StatusCode::DEADLINE_EXCEEDED;
    default:
      return grpc::StatusCode::INTERNAL;
  }
}

}  // namespace

grpc::Status to_status(const server::ApiError& error) {
  std::string message = error.message;
  if (message.size() > kMostBytes) {
    message.resize(kMostBytes);
    while (!message.empty() && (static_cast<unsigned char>(message.back()) & 0xc0) == 0x80) message.pop_back();
    if (!message.empty() && static_cast<unsigned char>(message.back()) >= 0xc0) message.pop_back();
    message += "...";
  }
  return {code_of(error.status), message};
}

}  // namespace quire::localai
