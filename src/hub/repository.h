// What a hub says of a model: its files, with sizes and hashes, at a commit.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hub/http.h"
#include "hub/model_name.h"

namespace quire::hub {

struct RemoteFile {
  std::string path;
  std::optional<uint64_t> bytes;
  std::string hash;  // 64 or 40 hexadecimal digits (hub/hash.h), or empty: not said
};

struct Repository {
  std::string commit;
  std::vector<RemoteFile> files;  // sorted by path; every path is one by check_path()

  const RemoteFile* find(std::string_view path) const;
};

// The answer of /api/models/ID/revision/REV?blobs=true. Errors: no JSON, no commit, a path that leads out of a folder.
Result<Repository> parse_repository(std::string_view json);

// The files that "weight_map" of a model.safetensors.index.json names, each once, sorted.
Result<std::vector<std::string>> parse_safetensors_index(std::string_view json);

// What ETags say of a blob: without quotes and W/; empty where it is no hash.
std::string hash_of_etag(std::string_view etag);

Result<Repository> fetch_repository(HttpClient& client, const ModelName& name);

Url file_url(const HttpOptions& options, const ModelName& name, std::string_view commit, std::string_view path);

// Asks for the size and hash of a file (HEAD), which is what other tools call its blob by. An error where they are not
// what the list of files said.
Result<RemoteFile> fetch_file_head(HttpClient& client, const ModelName& name, std::string_view commit,
                                   const RemoteFile& listed);

}  // namespace quire::hub
