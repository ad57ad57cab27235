// The weights of a model folder: its files, merged.
#include <algorithm>
#include <filesystem>
#include <map>

#include "convert/json.h"
#include "convert/safetensors.h"
#include "gguf/metadata.h"

namespace quire::convert {
namespace {

using gguf::printable;
namespace fs = std::filesystem;

constexpr std::string_view kSingle = "model.safetensors", kIndex = "model.safetensors.index.json";

// An index must not lead out of its folder.
bool is_plain_name(std::string_view name) {
  return name.size() <= 255 && name.ends_with(".safetensors") && !name.starts_with('.') &&
         name.find_first_of(std::string_view("/\\\0", 3)) == name.npos;
}

Result<gguf::Mapping> map_file(const std::string& path) {
  std::error_code error;
  if (!fs::exists(path, error)) return request_error("{}: no such file", path);
  if (!fs::is_regular_file(path, error)) return request_error("{}: is not a regular file", path);
  return gguf::Mapping::open(path);
}

}  // namespace

Result<ShardIndex> parse_shard_index(std::string_view text) {
  QUIRE_TRY(const nlohmann::json document, parse_json(text));
  const nlohmann::json* map = find_member(document, "weight_map");
  if (map == nullptr || !map->is_object()) return file_error("has no object weight_map");
  if (map->empty()) return file_error("weight_map lists no tensor");
  ShardIndex index;
  std::map<std::string, int> files;
  for (const auto& [name, file] : map->items()) {
    if (!file.is_string()) return file_error("weight_map names no file for tensor {}", printable(name));
    const auto& file_name = file.get_ref<const std::string&>();
    if (!is_plain_name(file_name))
      return file_error("weight_map puts tensor {} into {}, which is not the plain name of a .safetensors file",
                        printable(name), printable(file_name));
    files.emplace(file_name, 0);
  }
  for (auto& [name, number] : files) {
    number = static_cast<int>(index.files.size());
    index.files.push_back(name);
  }
  for (const auto& [name, file] : map->items())
    index.tensors.emplace_back(name, files.at(file.get_ref<const std::string&>()));
  return index;
}

Status FolderWeights::add(const std::string& path, std::span<const std::byte> bytes) {
  QUIRE_TRY(std::vector<SourceTensor> tensors, parse_safetensors(bytes).context(path));
  for (SourceTensor& t : tensors) {
    t.file = static_cast<int>(files_.size());
    tensors_.push_back(std::move(t));
  }
  files_.push_back(path);
  return {};
}

Status FolderWeights::index() {
  by_name_ = gguf::NameIndex(tensors_, [](const SourceTensor& t) { return std::string_view(t.name); });
  if (const auto twice = by_name_.duplicate())
    return file_error("{}: tensor {} is in another file already", file_of(tensors_[*twice]),
                      printable(tensors_[*twice].name));
  return {};
}

Result<FolderWeights> FolderWeights::parse(std::span<const std::byte> bytes) {
  FolderWeights c;
  QUIRE_CHECKED(c.add("memory", bytes));
  QUIRE_CHECKED(c.index());
  return c;
}

Result<FolderWeights> FolderWeights::open(const std::string& folder) {
  FolderWeights c;
  std::error_code error;
  const fs::path at(folder);
  std::string index_path;
  ShardIndex index;
  if (fs::exists(at / kSingle, error)) {
    index.files = {std::string(kSingle)};
  } else if (index_path = at / kIndex; fs::exists(index_path, error)) {
    QUIRE_TRY(const std::string text, read_text_file(index_path));
    QUIRE_TRY(index, parse_shard_index(text).context(index_path));
  } else {
    return request_error("{}: has neither {} nor {}; weights in other formats must be saved as safetensors first",
                         folder, kSingle, kIndex);
  }
  for (const std::string& name : index.files) {
    const std::string path = at / name;
    QUIRE_TRY(gguf::Mapping file, map_file(path).context(index_path.empty() ? folder : index_path));
    c.mappings_.push_back(std::move(file));
    QUIRE_CHECKED(c.add(path, c.mappings_.back().bytes()));
  }
  QUIRE_CHECKED(c.index());
  for (const auto& [name, file] : index.tensors) {
    const SourceTensor* t = c.find(name);
    if (t == nullptr || t->file != file)
      return file_error("{}: tensor {} should be in {}, but is not there; copy that file again", index_path,
                        printable(name), index.files[static_cast<size_t>(file)]);
  }
  return c;
}

const SourceTensor* FolderWeights::find(std::string_view name) const {
  const auto i = by_name_.find(
      tensors_, [](const SourceTensor& t) { return std::string_view(t.name); }, name);
  return i ? &tensors_[*i] : nullptr;
}

void FolderWeights::prefetch() const {
  for (const gguf::Mapping& m : mappings_) m.prefetch();
}

uint64_t FolderWeights::bytes() const {
  uint64_t sum = 0;
  for (const SourceTensor& t : tensors_) sum += t.data.size();
  return sum;
}

}  // namespace quire::convert
