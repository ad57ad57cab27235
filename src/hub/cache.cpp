#include "hub/cache.h"

#include <fcntl.h>
#include <pwd.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "core/atomic_file.h"

namespace quire::hub {

namespace fs = std::filesystem;

namespace {

Status make_folder(const fs::path& path) {
  std::error_code failed;
  fs::create_directories(path, failed);
  if (failed) return request_error("cannot make the folder {}: {}", path.string(), failed.message());
  return {};
}

// Paths of the files below a folder, relative to it. Links to folders are not followed.
std::vector<std::string> files_below(const fs::path& folder) {
  std::vector<std::string> paths;
  std::error_code failed;
  for (fs::recursive_directory_iterator i(folder, failed), end; !failed && i != end; i.increment(failed))
    if (!i->is_directory(failed) || i->is_symlink(failed))
      paths.push_back(i->path().lexically_relative(folder).string());
  std::sort(paths.begin(), paths.end());
  return paths;
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code failed;
  for (fs::directory_iterator i(folder, failed), end; !failed && i != end; i.increment(failed))
    names.push_back(i->path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

// The blob that a file of a snapshot leads to; empty: none.
std::string blob_of(const fs::path& link) {
  std::error_code failed;
  const fs::path target = fs::read_symlink(link, failed);
  return failed ? std::string() : target.filename().string();
}

std::optional<std::string> read_ref(const fs::path& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return {};
  char text[128];
  const ssize_t n = ::read(fd, text, sizeof text);
  close(fd);
  std::string_view commit(text, static_cast<size_t>(std::max<ssize_t>(n, 0)));
  while (!commit.empty() && (commit.back() == '\n' || commit.back() == ' ')) commit.remove_suffix(1);
  if (!is_hex(commit, 40)) return {};
  return std::string(commit);
}

uint64_t size_of(const fs::path& path) {
  std::error_code failed;
  const uint64_t bytes = fs::file_size(path, failed);
  return failed ? 0 : bytes;
}

}  // namespace

// ---- Locks ----

FileLock::FileLock(FileLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

FileLock::~FileLock() {
  if (fd_ >= 0) close(fd_);
}

Result<FileLock> FileLock::take(const std::string& path, bool wait, const std::function<void()>& say) {
  for (bool said = false;;) {
    const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0664);
    if (fd < 0) return request_error("cannot open {}: {}", path, std::strerror(errno));
    FileLock lock(fd);
    // A file system without locks has nobody to wait for; what is written is checked all the same.
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      if (!wait) return request_error("{} is locked by a process that uses it", path);
      if (!std::exchange(said, true) && say) say();
      while (flock(fd, LOCK_EX) != 0 && errno == EINTR) {
      }
    }
    // Who had it may have removed it: then this is not the lock that others see.
    struct stat mine {
    }, there{};
    if (fstat(fd, &mine) == 0 && stat(path.c_str(), &there) == 0 && mine.st_ino == there.st_ino &&
        mine.st_dev == there.st_dev)
      return lock;
  }
}

// ---- Paths ----

std::string Cache::blob_path(const ModelName& name, std::string_view hash) const {
  return fmt::format("{}/blobs/{}", model_folder(name), hash);
}

std::string Cache::lock_path(const ModelName& name, std::string_view hash) const {
  return fmt::format("{}/.locks/{}/{}.lock", root_, name.folder(), hash);
}

std::string Cache::snapshot_folder(const ModelName& name, std::string_view commit) const {
  return fmt::format("{}/snapshots/{}", model_folder(name), commit);
}

Status Cache::make_folders(const ModelName& name) const {
  QUIRE_CHECKED(make_folder(model_folder(name) + "/blobs"));
  return make_folder(fs::path(lock_path(name, "")).parent_path());
}

// ---- Writing ----

Status Cache::link(const ModelName& name, std::string_view commit, std::string_view path, std::string_view hash) const {
  QUIRE_CHECKED(check_path(path));
  const fs::path at = fs::path(snapshot_folder(name, commit)) / path;
  QUIRE_CHECKED(make_folder(at.parent_path()));
  std::error_code failed;
  // Through the link: one that leads nowhere is made anew. A file that is none lies on a file system without links.
  if (fs::exists(at, failed) && (!fs::is_symlink(at, failed) || blob_of(at) == hash)) return {};
  std::string target = "../../";
  for (const char c : path)
    if (c == '/') target += "../";
  target += fmt::format("blobs/{}", hash);
  // Renamed into place: whoever looks finds the one or the other.
  const std::string temporary = fmt::format("{}.quire-{}", at.string(), getpid());
  unlink(temporary.c_str());
  if (symlink(target.c_str(), temporary.c_str()) != 0 || rename(temporary.c_str(), at.c_str()) != 0) {
    const int number = errno;
    unlink(temporary.c_str());
    return request_error("cannot make the link {}: {}; the cache needs a file system with symbolic links", at.string(),
                         std::strerror(number));
  }
  return {};
}

Status Cache::note_revision(const ModelName& name, std::string_view commit) const {
  if (name.revision == commit) return {};
  QUIRE_CHECKED(check_path(name.revision));
  const fs::path at = fs::path(model_folder(name)) / "refs" / name.revision;
  if (read_ref(at) == commit) return {};
  QUIRE_CHECKED(make_folder(at.parent_path()));
  return write_file(at.string(), commit);
}

// ---- Reading ----

std::optional<std::string> Cache::commit_of(const ModelName& name) const {
  std::error_code failed;
  if (is_hex(name.revision, 40)) {
    if (!fs::is_directory(snapshot_folder(name, name.revision), failed)) return {};
    return name.revision;
  }
  return read_ref(fs::path(model_folder(name)) / "refs" / name.revision);
}

std::vector<CachedFile> Cache::files(const ModelName& name, std::string_view commit) const {
  const fs::path folder = snapshot_folder(name, commit);
  std::vector<CachedFile> files;
  std::error_code failed;
  for (std::string& path : files_below(folder))
    if (fs::is_regular_file(folder / path, failed) && path.find(".quire-") == std::string::npos) {
      const uint64_t bytes = size_of(folder / path);
      files.push_back({std::move(path), bytes});
    }
  return files;
}

std::vector<CachedModel> Cache::list() const {
  std::vector<CachedModel> models;
  for (const std::string& folder : names_in(root_)) {
    if (!folder.starts_with("models--")) continue;
    std::string id = folder.substr(sizeof "models--" - 1);
    if (const size_t dashes = id.find("--"); dashes != std::string::npos) id.replace(dashes, 2, "/");
    const Result<ModelName> name = ModelName::parse(id);
    if (!name.ok()) continue;
    const fs::path at = fs::path(root_) / folder;
    std::map<std::string, std::vector<std::string>> refs;
    for (const std::string& ref : files_below(at / "refs"))
      if (const auto commit = read_ref(at / "refs" / ref)) refs[*commit].push_back(ref);
    uint64_t unfinished = 0;
    for (const std::string& blob : names_in(at / "blobs"))
      if (blob.ends_with(kPartSuffix) || blob.ends_with(".incomplete")) unfinished += size_of(at / "blobs" / blob);
    const size_t before = models.size();
    for (const std::string& commit : names_in(at / "snapshots"))
      models.push_back({id, commit, refs[commit], files(*name, commit), 0});
    if (models.size() == before && unfinished > 0) models.push_back({.id = id});
    if (models.size() > before) models.back().unfinished = unfinished;
  }
  return models;
}

// ---- Removing ----

Result<uint64_t> Cache::remove(const ModelName& name, const std::function<bool(const std::string&)>& wanted) const {
  const fs::path folder = model_folder(name);
  std::error_code failed;
  if (!fs::is_directory(folder, failed))
    return request_error("{} is not in the cache {}; quire list says what is", name.id, root_);
  // Held until the end: nobody begins to fetch what is being removed.
  std::vector<FileLock> locks;
  const fs::path lock_folder = fs::path(lock_path(name, "")).parent_path();
  for (const std::string& lock : names_in(lock_folder)) {
    auto taken = FileLock::take((lock_folder / lock).string(), false);
    if (!taken.ok()) return taken.take_error().context(name.id + " is being fetched");
    locks.push_back(std::move(*taken));
  }
  std::set<std::string> used;  // blobs that something still leads to
  size_t removed = 0;
  for (const std::string& link : files_below(folder / "snapshots")) {
    const fs::path at = folder / "snapshots" / link;
    if (wanted(link.substr(link.find('/') + 1))) {
      ++removed;
      if (!fs::remove(at, failed)) return request_error("cannot remove {}: {}", at.string(), failed.message());
    } else {
      used.insert(blob_of(at));
    }
  }
  const bool all = used.empty();
  if (removed == 0 && !all) return request_error("{} is not in the cache {}", name.text(), root_);
  uint64_t freed = 0;
  for (const std::string& blob : names_in(folder / "blobs")) {
    if (!all && (used.contains(blob) || !is_hex(blob, blob.size()))) continue;
    const uint64_t bytes = size_of(folder / "blobs" / blob);
    if (!fs::remove(folder / "blobs" / blob, failed) && failed)
      return request_error("cannot remove {}: {}", (folder / "blobs" / blob).string(), failed.message());
    freed += bytes;
  }
  if (all) {
    fs::remove_all(folder, failed);
    if (failed) return request_error("cannot remove {}: {}", folder.string(), failed.message());
  }
  return freed;
}

Result<std::string> default_home() {
  // The size of the buffer is what glibc asks for at most in practice; a longer entry is an error as none is.
  std::vector<char> buffer(16384);
  passwd entry{};
  passwd* found = nullptr;
  if (getpwuid_r(getuid(), &entry, buffer.data(), buffer.size(), &found) != 0 || found == nullptr ||
      found->pw_dir == nullptr || found->pw_dir[0] != '/')
    return request_error("the system does not say where your home is; give --hub-cache FOLDER");
  return std::string(found->pw_dir) + "/.cache/huggingface";
}

}  // namespace quire::hub
