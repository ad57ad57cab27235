// Writing models of a chosen type, shared by `quantize` and `synth`: the names of types, and which tensors
// are matrices to encode.
#pragma once

#include <string>
#include <string_view>

#include "core/dtype.h"
#include "core/result.h"

namespace quire::cli {

// What a tensor is for, as far as its type is concerned. By its name, whatever architecture the file is of: more are
// quantised than run, so names count that no table of tensors knows.
enum class EncodingGroup {
  kKept,        // vectors, norms, routers, convolution taps: small, and precision counts
  kHead,        // token embedding and output head
  kFfn,         // feed-forward and expert matrices: most of a model
  kProjection,  // every other matrix
};
EncodingGroup encoding_group(std::string_view name, int n_dims);

// "q8_0" -> its type; an error that lists what can be written if there is no encoder for it.
Result<DType> parse_encodable(std::string_view name);

}  // namespace quire::cli
