#include "gguf/reader.h"

namespace quire::gguf {
namespace {

constexpr auto kNameOf = [](const TensorInfo& t) { return t.name; };

// A shard's place in a split model.
struct Split {
  uint32_t index = 0;
  uint32_t count = 1;
};

Result<Split> split_of(const Metadata& m) {
  QUIRE_TRY(const uint32_t count, m.get_u32_or("split.count", 0));
  if (count <= 1) return Split{};  // 0 is what merging tools leave behind
  if (count > UINT16_MAX) return file_error("split.count is {} (limit {})", count, UINT16_MAX);
  QUIRE_TRY(const uint32_t index, m.get_u32("split.no"));
  if (index >= count) return file_error("split.no is {}, but split.count is {}", index, count);
  return Split{index, count};
}

// The part of a shard's path before "-00001-of-00003.gguf".
Result<std::string> split_prefix(const std::string& path, Split split) {
  const std::string suffix = shard_path("", split.index, split.count);
  if (!path.ends_with(suffix))
    return file_error("its metadata says that it is shard {} of {}, so its name should end in {}; rename it back",
                      split.index + 1, split.count, suffix);
  return path.substr(0, path.size() - suffix.size());
}

Status check_shard(const Shard& shard, size_t index, size_t count) {
  QUIRE_TRY(const Split split, split_of(shard.metadata));
  if (count == 1 && split.count > 1)
    return file_error("it is shard {} of {} of a split model; all shards are needed", split.index + 1, split.count);
  if (split.count != count) return file_error("its split.count is {}, but the first shard says {}", split.count, count);
  if (split.index != index) return file_error("its split.no is {}, but {} is expected", split.index, index);
  return {};
}

}  // namespace

std::string shard_path(std::string_view prefix, uint32_t index, uint32_t count) {
  return fmt::format("{}-{:05}-of-{:05}.gguf", prefix, index + 1, count);
}

Result<File> File::open(const std::string& path) {
  std::vector<Mapping> mappings;
  std::vector<Shard> shards;
  std::vector<std::string> paths;
  auto add = [&](const std::string& p) -> Status {
    QUIRE_TRY(Mapping mapping, Mapping::open(p));
    auto shard = parse_shard(mapping.bytes(), static_cast<int>(shards.size()));
    if (!shard.ok()) return shard.take_error().context(p);
    mappings.push_back(std::move(mapping));
    shards.push_back(std::move(*shard));
    paths.push_back(p);
    return {};
  };

  QUIRE_CHECKED(add(path));
  QUIRE_TRY(const Split split, split_of(shards[0].metadata).context(path));
  if (split.count > 1) {
    QUIRE_TRY(const std::string prefix, split_prefix(path, split).context(path));
    if (split.index != 0)
      return request_error("{}: this is shard {} of {}; open the first one, {}", path, split.index + 1, split.count,
                           shard_path(prefix, 0, split.count));
    for (uint32_t i = 1; i < split.count; ++i) {
      const std::string sibling = shard_path(prefix, i, split.count);
      auto added = add(sibling);
      if (!added.ok()) return added.take_error().context(fmt::format("shard {} of {}", i + 1, split.count));
      QUIRE_CHECKED(check_shard(shards[i], i, split.count).context(sibling));
    }
  }
  QUIRE_TRY(File file, merge(std::move(shards)).context(path));
  file.mappings_ = std::move(mappings);
  for (size_t i = 0; i < paths.size(); ++i) file.shards_[i].path = std::move(paths[i]);
  return file;
}

Result<File> File::parse(std::span<const std::span<const std::byte>> parts) {
  std::vector<Shard> shards;
  for (const auto& bytes : parts) {
    const size_t i = shards.size();
    auto shard = parse_shard(bytes, static_cast<int>(i));
    if (!shard.ok())
      return parts.size() == 1 ? shard.take_error() : shard.take_error().context(fmt::format("shard {}", i));
    shards.push_back(std::move(*shard));
    QUIRE_CHECKED(check_shard(shards[i], i, parts.size()).context(fmt::format("shard {}", i)));
  }
  return merge(std::move(shards));
}

Result<File> File::merge(std::vector<Shard> shards) {
  QUIRE_CHECK(!shards.empty(), "no shards");
  File file;
  for (const Shard& s : shards) {
    file.shards_.push_back({{}, s.version, s.file_bytes, s.alignment, s.data_begin, s.tensors.size()});
    file.tensors_.insert(file.tensors_.end(), s.tensors.begin(), s.tensors.end());
  }
  static_cast<Metadata&>(file) = std::move(shards[0].metadata);
  file.by_name_ = NameIndex(file.tensors_, kNameOf);
  if (const auto twice = file.by_name_.duplicate())
    return file_error("tensor {} ({}) occurs twice", *twice, printable(file.tensors_[*twice].name));
  if (file.shards_.size() > 1) {
    QUIRE_TRY(const uint64_t total, file.get_u64("split.tensors.count"));
    if (total != file.tensors_.size())
      return file_error("the shards hold {} tensors, but split.tensors.count is {}; shards of different models?",
                        file.tensors_.size(), total);
  }
  return file;
}

Result<File> File::assemble(const std::string& path, std::span<const std::byte> head, std::vector<TensorInfo> tensors,
                            int64_t made_bytes, std::shared_ptr<const void> owner) {
  std::vector<Shard> shards;
  QUIRE_TRY(Shard shard, parse_shard(head, 0).context(path));
  QUIRE_CHECK(shard.tensors.empty(), "{} tensors in the head of what is assembled", shard.tensors.size());
  for (const TensorInfo& t : tensors) shard.file_bytes += static_cast<uint64_t>(t.bytes);
  shard.tensors = std::move(tensors);
  shards.push_back(std::move(shard));
  QUIRE_TRY(File file, merge(std::move(shards)).context(path));
  file.shards_[0].path = path;
  file.made_bytes_ = made_bytes;
  file.owner_ = std::move(owner);
  return file;
}

const TensorInfo* File::find_tensor(std::string_view name) const {
  const auto i = by_name_.find(tensors_, kNameOf, name);
  return i ? &tensors_[*i] : nullptr;
}

Result<const TensorInfo*> File::get_tensor(std::string_view name) const {
  if (const TensorInfo* t = find_tensor(name)) return t;
  return file_error("tensor {} is missing", printable(name));
}

uint64_t File::mapped_bytes() const {
  uint64_t sum = 0;
  for (const ShardInfo& s : shards_) sum += s.bytes;
  return sum;
}

int64_t File::tensor_bytes() const {
  int64_t sum = 0;
  for (const TensorInfo& t : tensors_) sum += t.bytes;
  return sum;
}

void File::prefetch() const {
  for (const Mapping& m : mappings_) m.prefetch();
}

}  // namespace quire::gguf
