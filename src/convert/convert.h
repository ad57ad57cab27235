// A Hugging Face model folder to GGUF. What is done to which tensor: docs/convert.md.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/result.h"

namespace quire::convert {

struct ConvertOptions {
  std::string folder, output;
  std::optional<DType> type;     // of the matrices: bf16, f16 or f32; nothing: as they are
  uint64_t split_max_bytes = 0;  // of tensor data in a file; 0: one file
  std::string name;              // general.name; empty: the folder's
  bool mmproj = true;            // whether a vision tower of a known family is written, too
  int threads = 1;
  std::function<bool()> stop;  // asked between tensors; true ends the conversion with an error and no output
};

struct ConvertSummary {
  struct TypeSum {
    DType type = DType::kF32;
    int64_t tensors = 0, bytes = 0;
  };
  std::string architecture, class_name, name;
  std::vector<std::string> files;  // written, in order
  uint64_t source_bytes = 0, file_bytes = 0;
  int64_t tensors = 0, source_tensors = 0;
  std::vector<TypeSum> types;
  std::vector<std::string> notes;  // a line each: what was decoded or left out
  // The vision tower's file, beside the first of `files`, and how many tensors it has; empty where there is none.
  std::string mmproj;
  int64_t mmproj_tensors = 0;
  uint64_t mmproj_bytes = 0;
};

// Everything is read and checked before the first byte is written; files appear under their names only when
// all of them are complete, the first of a split model last. Memory: one tensor (a layer's stacked experts)
// beside the mapped files.
Result<ConvertSummary> convert(const ConvertOptions& options);

}  // namespace quire::convert
