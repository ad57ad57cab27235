// A model file written again with changes: for tests of what readers say to files that are not as they should be.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/dtype.h"
#include "gguf/writer.h"

namespace quire::test {

struct GgufEdit {
  std::set<std::string> drop = {};                             // keys and tensors
  std::function<void(gguf::Writer&)> metadata = nullptr;       // adds keys; those that the file has must be dropped
  std::map<std::string, std::vector<int64_t>> reshape = {};    // tensor -> dims; as many elements or fewer
  std::vector<std::pair<std::string, std::string>> copy = {};  // (tensor, name of its copy)
  std::vector<std::pair<std::string, std::vector<int64_t>>> add = {};  // float32 tensors of zeros
  struct Tensor {
    std::string name;
    DType dtype;
    std::vector<int64_t> dims;
    std::vector<std::byte> data;
  };
  std::vector<Tensor> tensors = {};  // more of them
};
// Writes `from` with the changes to `to`. Dies with a message if that fails.
void edit_gguf(const std::string& from, const std::string& to, const GgufEdit& edit);

// tiny-qwen35 with `blocks` blocks for multi-token prediction in its metadata, and the tensors of one: those of block
// 1, which is one of attention, and what such a block has besides.
GgufEdit with_mtp_block(uint32_t blocks = 1);

}  // namespace quire::test
