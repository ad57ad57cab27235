#include "hub/repository.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/escape.h"
#include "core/json_builder.h"
#include "gguf/metadata.h"

namespace quire::hub {

using nlohmann::json;

namespace {

constexpr uint64_t kMaxListBytes = 64 << 20;

Result<json> parse(std::string_view text) {
  JsonBuilder<json, std::hash<std::string>> builder({.max_depth = 32, .max_values = 4'000'000, .max_blocks = 2'000'000},
                                                    gguf::printable);
  if (!json::sax_parse(text.begin(), text.end(), &builder)) {
    const size_t first = text.find_first_not_of(" \t\r\n");
    const bool page = first != text.npos && text[first] == '<';
    return file_error("not valid JSON: {}{}", builder.error(),
                      page ? "; it looks like a page for browsers: is this a hub, and does a proxy want a login?" : "");
  }
  json document = builder.take();
  if (!document.is_object()) return file_error("no JSON object");
  return document;
}

// The member if it has this type, else null.
const json* member(const json& object, const char* key, json::value_t type) {
  if (!object.is_object()) return nullptr;
  const auto at = object.find(key);
  return at == object.end() || at->type() != type ? nullptr : &*at;
}

std::string text_of(const json& object, const char* key) {
  const json* const value = member(object, key, json::value_t::string);
  return value == nullptr ? std::string() : value->get<std::string>();
}

std::optional<uint64_t> size_in(const json& object) {
  const json* const value = member(object, "size", json::value_t::number_unsigned);
  if (value == nullptr || value->get<uint64_t>() > INT64_MAX) return {};
  return value->get<uint64_t>();
}

bool is_hash(std::string_view text) {
  return is_hex(text, 64) || is_hex(text, 40);
}

Result<RemoteFile> parse_file(const json& entry) {
  RemoteFile file{.path = text_of(entry, "rfilename"), .bytes = size_in(entry), .hash = {}};
  QUIRE_CHECKED(check_path(file.path).context("the hub offers a file that cannot be one"));
  if (const json* const large = member(entry, "lfs", json::value_t::object)) {
    file.hash = text_of(*large, "sha256");
    if (const auto bytes = size_in(*large)) file.bytes = bytes;
  } else {
    file.hash = text_of(entry, "blobId");
  }
  if (!is_hash(file.hash)) file.hash.clear();
  return file;
}

}  // namespace

const RemoteFile* Repository::find(std::string_view path) const {
  const auto at = std::lower_bound(files.begin(), files.end(), path,
                                   [](const RemoteFile& f, std::string_view p) { return f.path < p; });
  return at == files.end() || at->path != path ? nullptr : &*at;
}

Result<Repository> parse_repository(std::string_view text) {
  QUIRE_TRY(const json document, parse(text));
  Repository repository{.commit = text_of(document, "sha"), .files = {}};
  if (!is_hex(repository.commit, 40))
    return file_error("\"sha\", the commit, is not there or no hash of 40 hexadecimal digits");
  const json* const files = member(document, "siblings", json::value_t::array);
  if (files == nullptr) return file_error("\"siblings\", the list of files, is not there");
  for (const json& entry : *files) {
    QUIRE_TRY(RemoteFile file, parse_file(entry));
    repository.files.push_back(std::move(file));
  }
  std::sort(repository.files.begin(), repository.files.end(),
            [](const RemoteFile& a, const RemoteFile& b) { return a.path < b.path; });
  for (size_t i = 1; i < repository.files.size(); ++i)
    if (repository.files[i].path == repository.files[i - 1].path)
      return file_error("the hub lists {} twice", gguf::printable(repository.files[i].path));
  return repository;
}

Result<std::vector<std::string>> parse_safetensors_index(std::string_view text) {
  QUIRE_TRY(const json document, parse(text));
  const json* const map = member(document, "weight_map", json::value_t::object);
  if (map == nullptr || map->empty()) return file_error("\"weight_map\" is not there, or empty");
  std::vector<std::string> names;
  for (const auto& [tensor, file] : map->items()) {
    if (!file.is_string()) return file_error("\"weight_map\": {} is in no file", gguf::printable(tensor));
    const auto& path = file.get_ref<const std::string&>();
    QUIRE_CHECKED(check_path(path).context("\"weight_map\""));
    if (names.empty() || names.back() != path) names.push_back(path);
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

std::string hash_of_etag(std::string_view etag) {
  if (etag.starts_with("W/")) etag.remove_prefix(2);
  if (etag.size() >= 2 && etag.front() == '"' && etag.back() == '"') etag = etag.substr(1, etag.size() - 2);
  return is_hash(etag) ? std::string(etag) : std::string();
}

Result<Repository> fetch_repository(HttpClient& client, const ModelName& name) {
  Url url = client.options().hub;
  url.target =
      fmt::format("{}api/models/{}/revision/{}?blobs=true", url.target, name.id, percent_encoded(name.revision));
  // A revision with a slash (refs/pr/1) is one part of the path.
  const size_t revision = url.target.find("/revision/") + sizeof "/revision/" - 1;
  for (size_t at = url.target.find('/', revision); at != std::string::npos; at = url.target.find('/', at))
    url.target.replace(at, 1, "%2F");
  const std::string what = fmt::format("revision {}", escaped(name.revision, 100));
  QUIRE_TRY(const std::string text, client.fetch_text(url, kMaxListBytes, name.id, what));
  return parse_repository(text).context(fmt::format("{} ({}): the answer of {}", name.id, what, url.origin()));
}

Url file_url(const HttpOptions& options, const ModelName& name, std::string_view commit, std::string_view path) {
  Url url = options.hub;
  url.target = fmt::format("{}{}/resolve/{}/{}", url.target, name.id, commit, percent_encoded(path));
  return url;
}

Result<RemoteFile> fetch_file_head(HttpClient& client, const ModelName& name, std::string_view commit,
                                   const RemoteFile& listed) {
  const std::string shown = fmt::format("{}/{}", name.id, listed.path);
  QUIRE_TRY(const Response answer,
            client.fetch({.url = file_url(client.options(), name, commit, listed.path), .head = true}));
  const Response::Linked& linked = answer.linked();
  const bool good = answer.status() == 200 || (answer.status() / 100 == 3 && !linked.size.empty());
  if (!good) return refusal(answer, client.options(), name.id, listed.path);
  RemoteFile file{.path = listed.path, .bytes = parse_size(linked.size), .hash = hash_of_etag(linked.etag)};
  if (!file.bytes) file.bytes = answer.length();
  if (file.hash.empty()) file.hash = hash_of_etag(answer.header("ETag"));
  if (file.hash.empty()) file.hash = listed.hash;
  if (!linked.commit.empty() && linked.commit != commit)
    return file_error("{}: asked for at commit {}, the hub speaks of another one; try again", shown, commit);
  if (file.hash.empty())
    return file_error(
        "{}: the hub gives neither a SHA-256 nor Git's hash of it, so that it could not be checked; it "
        "is not fetched",
        shown);
  if (!file.bytes) return file_error("{}: the hub does not say how long it is", shown);
  if ((!listed.hash.empty() && listed.hash != file.hash) || (listed.bytes && listed.bytes != file.bytes))
    return file_error("{}: the hub lists it with {} bytes and hash {}, and offers {} bytes with hash {}; try again",
                      shown, listed.bytes.value_or(0), listed.hash, *file.bytes, file.hash);
  return file;
}

}  // namespace quire::hub
