#include "convert/open.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>
#include <vector>

#include "convert/folder.h"
#include "convert/metadata.h"
#include "convert/produce.h"
#include "convert/vision_folder.h"
#include "core/cpu.h"
#include "core/lazy_memory.h"
#include "core/memory.h"
#include "core/progress.h"
#include "gguf/writer.h"

namespace quire::convert {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kAlignment = 64;    // of what is made: a cache line
constexpr uint64_t kLeastAligned = 8;  // of what is used where it is mapped, as TensorInfo says

// The folder that a model's path stands for; nothing: a GGUF file's.
std::optional<std::string> folder_of(const std::string& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) return path;
  const fs::path file(path);
  if (file.filename() != "config.json" && file.extension() != ".safetensors") return std::nullopt;
  return file.has_parent_path() ? file.parent_path().string() : ".";
}

// A folder as an open model, or its vision tower: what gguf::File points into.
template <class Folder>
class Opened {
 public:
  Opened(Folder folder, const std::string& path, bool matrices)
      : folder_(std::move(folder)), path_(path), matrices_(matrices) {}

  Status lay_out() {
    folder_.write_metadata(model_name(path_), writer_);
    QUIRE_TRY(head_, writer_.head());
    for (const OutTensor& t : folder_.plan.tensors) {
      const std::byte* const there = payload_in_place(t);
      const bool in_place = there != nullptr && reinterpret_cast<uintptr_t>(there) % kLeastAligned == 0;
      payloads_.push_back(in_place ? there : nullptr);
      if (in_place) continue;
      arena_bytes_ += round_up(static_cast<uint64_t>(t.bytes()));
    }
    QUIRE_TRY(arena_, LazyMemory::reserve(arena_bytes_, "tensors of " + path_));
    arena_.prefer_huge_pages();
    return {};
  }

  Status make(int threads) {
    if (matrices_) QUIRE_CHECKED(check_memory());
    folder_.weights.prefetch();
    Producer producer(threads);
    Progress progress("loading", static_cast<int64_t>(arena_bytes_), Progress::Unit::kBytes);
    std::set<std::string> not_finite;
    std::byte* at = arena_.bytes().data();
    for (size_t i = 0; i < payloads_.size(); ++i) {
      if (payloads_[i] != nullptr) continue;
      const OutTensor& t = folder_.plan.tensors[i];
      if (matrices_ || t.dims.size() == 1) QUIRE_CHECKED(producer.make(t, at, not_finite));
      payloads_[i] = at;
      at += round_up(static_cast<uint64_t>(t.bytes()));
      progress.add(t.bytes());
    }
    return refuse_not_finite(not_finite);
  }

  // `self` is this.
  Result<gguf::File> file(std::shared_ptr<const void> self) const {
    std::vector<gguf::TensorInfo> tensors;
    for (size_t i = 0; i < payloads_.size(); ++i) {
      const OutTensor& t = folder_.plan.tensors[i];
      gguf::TensorInfo& info = tensors.emplace_back();
      info.name = t.name;
      info.dtype = t.dtype;
      info.n_dims = static_cast<int>(t.dims.size());
      std::copy(t.dims.begin(), t.dims.end(), info.dims.begin());
      info.data = payloads_[i];
      info.bytes = t.bytes();
    }
    return gguf::File::assemble(path_, std::as_bytes(std::span(head_)), std::move(tensors),
                                static_cast<int64_t>(arena_bytes_), std::move(self));
  }

 private:
  static uint64_t round_up(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

  Status check_memory() const {
    const int64_t available = available_memory();
    if (static_cast<int64_t>(arena_bytes_) <= available) return {};
    return capacity_error(
        "{} MiB of the model's tensors cannot be used as the folder has them and must be made in memory, and {} MiB "
        "are available; `quire convert` writes them to a file once, which is mapped",
        arena_bytes_ >> 20, available >> 20);
  }

  Folder folder_;
  std::string path_;
  bool matrices_;
  gguf::Writer writer_;
  std::string head_;
  std::vector<const std::byte*> payloads_;  // null: not made yet
  uint64_t arena_bytes_ = 0;
  LazyMemory arena_;
};

template <class Folder>
Result<gguf::File> opened(Folder folder, const std::string& path, const OpenOptions& options) {
  const auto opened = std::make_shared<Opened<Folder>>(std::move(folder), path, options.matrices);
  QUIRE_CHECKED(opened->lay_out().context(path));
  QUIRE_CHECKED(opened->make(options.threads == 0 ? available_cpus() : options.threads).context(path));
  return opened->file(opened);
}

}  // namespace

std::string file_name_of(const std::string& path) {
  const std::optional<std::string> folder = folder_of(path);
  return folder ? folder_name(*folder) : fs::path(path).stem().string();
}

Result<gguf::File> open_model(const std::string& path, const OpenOptions& options) {
  const std::optional<std::string> folder_path = folder_of(path);
  if (!folder_path) return gguf::File::open(path);
  QUIRE_TRY(ModelFolder folder, ModelFolder::read(*folder_path, {.type = {}, .keep_fp8 = options.keep_fp8}));
  return opened(std::move(folder), *folder_path, options);
}

Result<std::optional<gguf::File>> open_vision(const std::string& path, const OpenOptions& options) {
  const std::optional<std::string> folder_path = folder_of(path);
  if (!folder_path) return std::optional<gguf::File>();
  QUIRE_TRY(std::optional<VisionFolder> folder,
            VisionFolder::read(*folder_path, {.type = {}, .keep_fp8 = options.keep_fp8}));
  if (!folder) return std::optional<gguf::File>();
  QUIRE_TRY(gguf::File file, opened(std::move(*folder), *folder_path, options));
  return std::optional(std::move(file));
}

}  // namespace quire::convert
