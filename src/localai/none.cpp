// Stands in for the other files where the program is built without gRPC.
#include "localai/localai.h"

namespace quire::localai {

Status run_backend(const BackendOptions&) {
  return request_error("{}", QUIRE_GRPC_MISSING);
}

}  // namespace quire::localai
