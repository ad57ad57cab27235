// Which files of a model belong together, and which of several kinds this machine should have.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/result.h"
#include "hub/model_name.h"

namespace quire::hub {

struct NamedFile {
  std::string path;
  uint64_t bytes = 0;
};

// What can be run as one model: a GGUF file, the parts of a split one, or a folder of safetensors.
struct Variant {
  std::string kind;  // "Q4_K_M", "UD-Q4_K_XL", "BF16", "safetensors"; a file's stem where nothing is known
  std::vector<std::string> files;  // paths; of a GGUF file the parts in order
  uint64_t bytes = 0;
  bool folder = false;
  int parts_missing = 0;  // of a split file
  NamedFile mmproj;       // the vision tower that a GGUF file takes from beside it; without a path: none
  uint64_t all_bytes() const { return bytes + mmproj.bytes; }
};

// In the order of paths, the folder last. Files beside a model (mmproj, imatrix) are none.
std::vector<Variant> variants_of(std::span<const NamedFile> files);

// Leaves out what of a folder's safetensors is not among `weights`, which are sorted, as parse_safetensors_index()
// gives them. The error names the first of them that the folder has not.
Status keep_weights(Variant& folder, std::span<const std::string> weights);

// The kind of quantisation that a file's name speaks of; empty: none that is known.
std::string kind_of(std::string_view path);

// Where a model is to run.
struct Place {
  std::string what = "memory";  // "this machine's memory", "the memory of GPU 0"
  int64_t bytes = 0;            // that may be taken
  bool gpu = false;
};

// Whether weights of so many bytes leave room for caches and scratch.
bool fits(uint64_t bytes, const Place& place);

struct Choice {
  Variant variant;
  std::string why;
};

// The variant that the name asks for; or, if it leaves that to us, the first that fits in the order of what is worth
// having: 4 bits as most people take them, then more bits for those who have nothing else, then fewer. Errors: none of
// that name, several of it, parts missing, none that fits or can be run; they say what there is.
Result<Choice> choose(std::span<const Variant> variants, const ModelName& name, const Place& place);

// A size as messages have it: "4.7 GB".
std::string size_text(uint64_t bytes);

}  // namespace quire::hub
