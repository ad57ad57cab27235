// What becomes of each tensor of the input, in the order of the output.
#pragma once

#include <string>
#include <vector>

#include "cli/quantize/mix.h"
#include "gguf/reader.h"
#include "gguf/writer.h"
#include "quant/importance.h"

namespace quire::cli {

struct Job {
  const gguf::TensorInfo* in = nullptr;
  Choice choice;
  std::vector<float> factors;  // of the input's "<stem>.scale", to be multiplied in; empty: none

  DType type() const { return choice.type; }
  bool encoded() const { return type() != in->dtype; }
  int64_t matrices() const { return in->dims[2] * in->dims[3]; }
  int64_t out_bytes() const { return encoded() ? dtype_bytes(type(), in->elems()) : in->bytes; }
  bool has_scale() const { return encoded() && type() == DType::kNVFP4; }  // writes a "<stem>.scale"
  std::string scale_name() const;
};

// Scales of tensors that are encoded anew are multiplied in, and dropped from the output. `importance` may be
// null. Errors: types that cannot be decoded, scales of wrong shapes, importances of another model.
Result<std::vector<Job>> plan(const gguf::File& f, const std::vector<Choice>& choices,
                              const quant::Importance* importance);

// Declares the tensor, and its scale if it gets one.
Status declare(const Job& job, gguf::Writer& w);

}  // namespace quire::cli
