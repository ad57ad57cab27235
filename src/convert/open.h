// Any model that a command names: a GGUF file, or a Hugging Face folder, of which no file is written.
#pragma once

#include <optional>
#include <string>

#include "core/result.h"
#include "gguf/reader.h"

namespace quire::convert {

struct OpenOptions {
  // Whether matrices are wanted. Without, those that would have to be made are zeros, and take no memory; vectors (of
  // one dimension) are there, and what is mapped.
  bool matrices = true;
  // Whether FP8 stays what it is, as a type that no file can have (DType::kFP8); else it becomes BF16.
  bool keep_fp8 = true;
  int threads = 0;  // that make tensors; 0: all CPUs
};

// What a model is called that has no other name: the folder's name, or the file's without its extension.
std::string file_name_of(const std::string& path);

// The model at `path`. Of a folder, it has the metadata, names, types and bytes that `quire convert` would write,
// but for FP8. A tensor whose bytes lie in the folder as they are wanted is used where it is mapped; the others
// (experts to be stacked, rows to be put in order, codes to be joined with their scales) are made, once, in memory of
// the process: File::made_bytes(), which must be available. Errors are those of File::open() and of convert(); only
// values that are NaN or infinite are looked for in no more than what is made.
Result<gguf::File> open_model(const std::string& path, const OpenOptions& options = {});

// The vision tower of the folder at `path`, as the mmproj file that `quire convert` would write; no value where that is
// no folder, or has no tower of a known family. Errors are those of open_model(), for the tower's part.
Result<std::optional<gguf::File>> open_vision(const std::string& path, const OpenOptions& options = {});

}  // namespace quire::convert
