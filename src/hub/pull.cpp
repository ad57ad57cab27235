#include "hub/pull.h"

#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <memory>

#include "core/output.h"
#include "core/progress.h"
#include "gguf/mapping.h"
#include "hub/download.h"

namespace quire::hub {

namespace fs = std::filesystem;

namespace {

constexpr char kIndex[] = "model.safetensors.index.json";

// A bar on a terminal, lines elsewhere.
class PullProgress {
 public:
  PullProgress(std::string what, uint64_t total)
      : what_(std::move(what)),
        total_(static_cast<int64_t>(total)),
        bar_(what_, total_, Progress::Unit::kBytes),
        lines_(isatty(STDERR_FILENO) == 0) {}

  void set(uint64_t done) {
    bar_.set(static_cast<int64_t>(done));
    const auto now = Clock::now();
    if (!lines_ || now < next_) return;
    next_ = now + kInterval;
    const double seconds = std::chrono::duration<double>(now - start_).count();
    tell_line(progress_line(what_, static_cast<int64_t>(done), total_, Progress::Unit::kBytes, seconds));
  }

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr auto kInterval = std::chrono::seconds(10);
  std::string what_;
  int64_t total_;
  Progress bar_;
  bool lines_;
  Clock::time_point start_ = Clock::now(), next_ = start_ + kInterval;
};

std::vector<NamedFile> named_files(const std::vector<CachedFile>& files) {
  std::vector<NamedFile> named;
  for (const CachedFile& f : files) named.push_back({f.path, f.bytes});
  return named;
}

// Of a folder with an index: without the safetensors that it does not name.
Status keep_indexed(Variant& variant, const std::string& index_path, const ModelName& name) {
  QUIRE_TRY(const gguf::Mapping file, gguf::Mapping::open(index_path));
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  QUIRE_TRY(const std::vector<std::string> weights,
            parse_safetensors_index(text).context(fmt::format("{}/{}", name.id, kIndex)));
  return keep_weights(variant, weights).context(fmt::format("{}/{}", name.id, kIndex));
}

class Pull {
 public:
  Pull(const ModelName& name, const HubOptions& options)
      : name_(name), options_(options), cache_(options.cache), client_(options.http) {}

  Result<Pulled> online() {
    QUIRE_TRY(repository_, fetch_repository(client_, name_));
    const std::vector<NamedFile> files = hub::named_files(repository_);
    QUIRE_TRY(Choice choice, choose(variants(files), name_, options_.place));
    QUIRE_CHECKED(cache_.make_folders(name_));
    if (choice.variant.folder && repository_.find(kIndex) != nullptr) {
      QUIRE_CHECKED(fetch({kIndex}));
      QUIRE_CHECKED(keep_indexed(choice.variant, snapshot_path(repository_.commit, kIndex), name_));
    }
    std::vector<std::string> paths = choice.variant.files;
    if (!choice.variant.mmproj.path.empty()) paths.push_back(choice.variant.mmproj.path);
    QUIRE_CHECKED(fetch(paths));
    QUIRE_CHECKED(cache_.note_revision(name_, repository_.commit));
    return result(choice, repository_.commit);
  }

  Result<Pulled> offline() {
    const auto commit = cache_.commit_of(name_);
    if (!commit)
      return request_error("{} (revision {}) is not in the cache {}; without --offline it is fetched", name_.id,
                           name_.revision, cache_.root());
    QUIRE_TRY(Choice choice, choose(variants(named_files(cache_.files(name_, *commit))), name_, options_.place)
                                 .context(fmt::format("in the cache {}", cache_.root())));
    const std::string index = snapshot_path(*commit, kIndex);
    std::error_code failed;
    if (choice.variant.folder && fs::exists(index, failed)) QUIRE_CHECKED(keep_indexed(choice.variant, index, name_));
    return result(choice, *commit);
  }

 private:
  std::vector<Variant> variants(std::span<const NamedFile> files) const {
    std::vector<Variant> all = variants_of(files);
    if (!options_.mmproj)
      for (Variant& v : all) v.mmproj = {};
    return all;
  }

  std::string snapshot_path(const std::string& commit, const std::string& file) const {
    return cache_.snapshot_folder(name_, commit) + "/" + file;
  }

  Pulled result(const Choice& choice, const std::string& commit) const {
    const Variant& v = choice.variant;
    return {.path = v.folder ? cache_.snapshot_folder(name_, commit) : snapshot_path(commit, v.files.front()),
            .mmproj = v.mmproj.path.empty() ? "" : snapshot_path(commit, v.mmproj.path),
            .commit = commit,
            .kind = v.kind,
            .why = choice.why,
            .bytes = v.all_bytes(),
            .fetched = fetched_};
  }

  // Whether the snapshot has the file as it is listed.
  bool is_there(const RemoteFile& file) const {
    const fs::path at = snapshot_path(repository_.commit, file.path);
    std::error_code failed;
    if (!fs::is_regular_file(at, failed)) return false;
    if (file.bytes && fs::file_size(at, failed) != *file.bytes) return false;
    const fs::path blob = fs::read_symlink(at, failed);
    return failed || file.hash.empty() || blob.filename() == file.hash;
  }

  Status fetch(const std::vector<std::string>& paths) {
    std::vector<RemoteFile> wanted;
    uint64_t total = 0;
    for (const std::string& path : paths) {
      const RemoteFile& file = *repository_.find(path);
      if (is_there(file)) continue;
      wanted.push_back(file);
      total += file.bytes.value_or(0);
    }
    if (wanted.empty()) return {};
    std::error_code unknown;
    const fs::space_info space = fs::space(cache_.model_folder(name_), unknown);
    if (!unknown && space.capacity > 0 && total > space.available + unfinished_bytes(wanted))
      return request_error(
          "{}: {} are to be fetched, but the file system of {} has {} left; free space, or choose "
          "another --hub-cache",
          name_.id, size_text(total), cache_.root(), size_text(space.available));
    PullProgress progress("fetching", total);
    uint64_t before = 0;
    for (const RemoteFile& file : wanted) {
      QUIRE_CHECKED(fetch_file(file, [&](uint64_t here) { progress.set(before + here); }));
      before += file.bytes.value_or(0);
    }
    return {};
  }

  // Room that earlier attempts have taken already.
  uint64_t unfinished_bytes(const std::vector<RemoteFile>& files) const {
    uint64_t sum = 0;
    std::error_code failed;
    for (const RemoteFile& f : files)
      if (const uint64_t n = fs::file_size(cache_.blob_path(name_, f.hash) + std::string(kPartSuffix), failed); !failed)
        sum += n;
    return sum;
  }

  Status fetch_file(const RemoteFile& listed, const std::function<void(uint64_t)>& progress) {
    QUIRE_TRY(const RemoteFile file, fetch_file_head(client_, name_, repository_.commit, listed));
    const std::string blob = cache_.blob_path(name_, file.hash), shown = name_.id + "/" + file.path;
    QUIRE_TRY(const FileLock lock, FileLock::take(cache_.lock_path(name_, file.hash), true, [&] {
                tell(shown + ": another process fetches it; waiting for that");
              }));
    std::error_code failed;
    if (!fs::is_regular_file(blob, failed) || fs::file_size(blob, failed) != *file.bytes) {
      tell(fmt::format("{}: {}", shown, size_text(*file.bytes)));
      QUIRE_CHECKED(download({.url = file_url(options_.http, name_, repository_.commit, file.path),
                              .shown = shown,
                              .model = name_.id,
                              .hash = file.hash,
                              .bytes = *file.bytes,
                              .blob_path = blob,
                              .connections = options_.connections},
                             options_.http, progress));
      fetched_ += *file.bytes;
    }
    return cache_.link(name_, repository_.commit, file.path, file.hash);
  }

  const ModelName& name_;
  const HubOptions& options_;
  Cache cache_;
  HttpClient client_;
  Repository repository_;
  uint64_t fetched_ = 0;
};

}  // namespace

std::vector<NamedFile> named_files(const Repository& repository) {
  std::vector<NamedFile> named;
  for (const RemoteFile& f : repository.files) named.push_back({f.path, f.bytes.value_or(0)});
  return named;
}

Result<Pulled> pull(const ModelName& name, const HubOptions& options) {
  Pull work(name, options);
  return options.offline ? work.offline() : work.online();
}

}  // namespace quire::hub
