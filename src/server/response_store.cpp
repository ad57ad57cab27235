#include "server/response_store.h"

#include <algorithm>

#include "gguf/metadata.h"

namespace quire::server {
namespace {

constexpr size_t kOverhead = 256;  // of an entry, and some of each item, beside their texts
constexpr size_t kItemOverhead = 48;
constexpr size_t kMostShown = 64;

size_t bytes_of(const StoredResponse& r) {
  size_t bytes = kOverhead + r.id.size() + r.previous.size() + r.body.size();
  for (const StoredResponse::Item& item : r.input) bytes += 2 * kItemOverhead + item.id.size() + item.text.size();
  for (const std::string& item : r.output) bytes += kItemOverhead + item.size();
  return bytes;
}

}  // namespace

ResponseStore::ResponseStore(const ResponseStoreOptions& options, Registry& registry)
    : options_(options),
      bytes_gauge_(registry.gauge("quire:response_store_bytes", "Responses that are kept for clients to go on from.")),
      count_gauge_(registry.gauge("quire:response_store_entries", "How many responses are kept.")) {}

void ResponseStore::begin(int key, StoredResponse response) {
  const std::lock_guard lock(mutex_);
  drop_old();
  add(key, std::move(response));
}

void ResponseStore::add(int key, StoredResponse response) {
  const size_t bytes = bytes_of(response);
  if (!make_room(bytes)) return;
  entries_.push_front({key, bytes, Clock::now(), std::make_shared<StoredResponse>(std::move(response))});
  by_id_[entries_.front().response->id] = entries_.begin();
  bytes_ += bytes;
  publish();
}

// Whether there is so much, for one more.
bool ResponseStore::make_room(size_t bytes) {
  if (bytes > options_.max_bytes || options_.max_count == 0) return false;
  while (bytes_ + bytes > options_.max_bytes || entries_.size() >= options_.max_count) drop(std::prev(entries_.end()));
  return true;
}

void ResponseStore::finish(int key, const std::string& id, std::vector<std::string> output, std::string body) {
  const std::lock_guard lock(mutex_);
  const auto at = by_id_.find(id);
  if (at == by_id_.end() || at->second->key != key) return;
  const std::shared_ptr<StoredResponse> begun = at->second->response;  // nobody else has it yet
  drop(at->second);
  StoredResponse whole = std::move(*begun);
  whole.output = std::move(output);
  whole.body = std::move(body);
  add(key, std::move(whole));
}

StoredPtr ResponseStore::find(int key, const std::string& id) {
  const std::lock_guard lock(mutex_);
  drop_old();
  const auto entry = look_up(key, id);
  return entry == entries_.end() ? nullptr : entry->response;
}

bool ResponseStore::erase(int key, const std::string& id) {
  const std::lock_guard lock(mutex_);
  drop_old();
  const auto entry = look_up(key, id);
  if (entry == entries_.end()) return false;
  drop(entry);
  return true;
}

ApiResult<std::vector<StoredPtr>> ResponseStore::history(int key, const std::string& id, size_t most) {
  const std::lock_guard lock(mutex_);
  drop_old();
  std::vector<StoredPtr> all;
  size_t bytes = 0;
  // Ids are made by the server, and each response names an older one: there are no rings.
  for (std::string next = id; !next.empty();) {
    const auto entry = look_up(key, next);
    if (entry == entries_.end())
      return bad_field("previous_response_id", "previous_response_not_found",
                       "Previous response with id {} not found: it was not stored, or is no longer (responses are kept "
                       "for {} s since their last use, and {} bytes of them); send the whole conversation as 'input'",
                       gguf::printable(next.substr(0, kMostShown)),
                       std::chrono::duration_cast<std::chrono::seconds>(options_.keep).count(), options_.max_bytes);
    bytes += entry->bytes - entry->response->body.size();
    if (bytes > most)
      return bad_field("previous_response_id", "invalid_value",
                       "the conversation before this response has more than {} bytes, as many as a body may have",
                       most);
    all.push_back(entry->response);
    next = entry->response->previous;
  }
  std::reverse(all.begin(), all.end());
  return all;
}

// As if used now.
ResponseStore::Entries::iterator ResponseStore::look_up(int key, const std::string& id) {
  const auto at = by_id_.find(id);
  if (at == by_id_.end() || at->second->key != key || at->second->response->body.empty()) return entries_.end();
  at->second->used = Clock::now();
  entries_.splice(entries_.begin(), entries_, at->second);
  return entries_.begin();
}

void ResponseStore::drop(Entries::iterator entry) {
  bytes_ -= entry->bytes;
  by_id_.erase(entry->response->id);
  entries_.erase(entry);
  publish();
}

void ResponseStore::drop_old() {
  const Clock::time_point oldest = Clock::now() - options_.keep;
  while (!entries_.empty() && entries_.back().used < oldest) drop(std::prev(entries_.end()));
}

void ResponseStore::publish() {
  bytes_gauge_.set(static_cast<double>(bytes_));
  count_gauge_.set(static_cast<double>(entries_.size()));
}

}  // namespace quire::server
