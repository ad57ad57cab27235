// Model folders as the transformers library saves them, made by tests: safetensors files, config.json,
// tokenizer.json.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "support/tiny_models.h"

namespace quire::test {

struct SafeTensor {
  std::string name, dtype;  // "BF16"
  std::vector<int64_t> shape;
  std::string bytes;
};

template <class T>
SafeTensor safe_tensor(std::string name, std::string dtype, std::vector<int64_t> shape, const std::vector<T>& values) {
  return {std::move(name), std::move(dtype), std::move(shape),
          std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T))};
}
std::vector<SafeTensor> safe_tensors(const TinyModel& m);  // BF16, as the published folders have them

// A whole file; with a header of the test's own making, `data` follows it.
std::string safetensors_file(const std::vector<SafeTensor>& tensors);
std::string safetensors_file(std::string_view header, std::string_view data);

nlohmann::json hf_config(const TinyModel& m);
// With the tokens of the model's GGUF file, and the splitting pattern of its architecture.
nlohmann::json hf_tokenizer(const TinyModel& m);

// A folder in the temporary directory, removed with the object.
class HfFolder {
 public:
  HfFolder();
  // config.json, tokenizer.json, tokenizer_config.json and model.safetensors of a model.
  explicit HfFolder(const TinyModel& m);
  HfFolder(const HfFolder&) = delete;
  ~HfFolder();

  std::string path(const std::string& name = "") const { return name.empty() ? folder_ : folder_ / name; }
  void write(const std::string& name, std::string_view bytes) const;
  void write_json(const std::string& name, const nlohmann::json& document) const { write(name, document.dump()); }
  void remove(const std::string& name) const { std::filesystem::remove(folder_ / name); }

 private:
  std::filesystem::path folder_;
};

}  // namespace quire::test
