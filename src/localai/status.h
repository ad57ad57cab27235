// Errors as gRPC tells them.
#pragma once

#include <grpcpp/support/status.h>

#include "server/protocol/api_error.h"

namespace quire::localai {

// HTTP's statuses as gRPC's codes: 400 INVALID_ARGUMENT, 404 NOT_FOUND, 429 RESOURCE_EXHAUSTED, ... The message is cut
// to what a header holds.
grpc::Status to_status(const server::ApiError& error);

}  // namespace quire::localai
