// The folder that tools share for what they fetched from a hub, laid out as huggingface_hub does:
//   models--ORG--NAME/blobs/HASH                      files, called by the hash of their content
//   models--ORG--NAME/refs/main                       the commit that a branch or tag was last seen at
//   models--ORG--NAME/snapshots/COMMIT/path/of/file   symbolic links to blobs
//   .locks/models--ORG--NAME/HASH.lock                locked (flock) by who fetches that blob
// What is being fetched lies beside the blobs, as HASH.quire-part with HASH.quire-map (hub/part_file.h).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hub/model_name.h"

namespace quire::hub {

inline constexpr std::string_view kPartSuffix = ".quire-part", kMapSuffix = ".quire-map";

// An exclusive lock on a file, which is made for it and stays; released with the object.
class FileLock {
 public:
  // Waits, saying so once by `say`, if that is not empty. With `wait` false an error where somebody else has it.
  static Result<FileLock> take(const std::string& path, bool wait, const std::function<void()>& say = {});
  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&&) = delete;
  ~FileLock();

 private:
  explicit FileLock(int fd) : fd_(fd) {}
  int fd_ = -1;
};

struct CachedFile {
  std::string path;  // within the model: "config.json"
  uint64_t bytes = 0;
};

struct CachedModel {
  std::string id;
  std::string commit;             // of a snapshot
  std::vector<std::string> refs;  // branches and tags that were last seen there
  std::vector<CachedFile> files;  // that are there, sorted
  uint64_t unfinished = 0;        // bytes of the model's blobs that are not complete
};

class Cache {
 public:
  explicit Cache(std::string root) : root_(std::move(root)) {}
  const std::string& root() const { return root_; }

  std::string model_folder(const ModelName& name) const { return root_ + "/" + name.folder(); }
  std::string blob_path(const ModelName& name, std::string_view hash) const;
  std::string lock_path(const ModelName& name, std::string_view hash) const;
  std::string snapshot_folder(const ModelName& name, std::string_view commit) const;

  // Makes the folders that a blob and its lock need.
  Status make_folders(const ModelName& name) const;
  // Has a file of a snapshot lead to a blob. What leads there already stays as it is.
  Status link(const ModelName& name, std::string_view commit, std::string_view path, std::string_view hash) const;
  // Notes that the revision is at the commit; of a commit itself nothing is noted.
  Status note_revision(const ModelName& name, std::string_view commit) const;

  // The commit that a revision was last seen at, or is itself; nothing: never seen.
  std::optional<std::string> commit_of(const ModelName& name) const;
  // The files of a snapshot whose content is there, sorted by path.
  std::vector<CachedFile> files(const ModelName& name, std::string_view commit) const;

  // Every snapshot of every model, sorted. A model without any that has unfinished blobs is one with an empty commit.
  std::vector<CachedModel> list() const;
  // Removes the model, or only the files for which `wanted` is true, with the blobs that nothing leads to any more.
  // Bytes that became free. An error where somebody fetches it, or there is nothing to remove.
  Result<uint64_t> remove(const ModelName& name, const std::function<bool(const std::string&)>& wanted) const;

 private:
  std::string root_;
};

// ~/.cache/huggingface of the user that the process runs as; environment variables are not asked. An error where the
// system does not know a home.
Result<std::string> default_home();

}  // namespace quire::hub
