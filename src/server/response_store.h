// Responses that clients may come back to: kept in memory, so many bytes of them and so long, each for whose API key it
// was made.
#pragma once

#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "server/metrics.h"
#include "server/protocol/api_error.h"

namespace quire::server {

struct ResponseStoreOptions {
  size_t max_bytes = size_t{64} << 20;  // of all together; 0: nothing is stored
  size_t max_count = 16384;
  std::chrono::milliseconds keep{std::chrono::hours(1)};  // since it was last used
};

// One response, and what it answered.
struct StoredResponse {
  struct Item {
    std::string id, text;  // the text of a JSON object, which has the id
  };
  std::string id;
  std::string previous;             // the response that it goes on from; empty: none
  std::vector<Item> input;          // of the request itself
  std::vector<std::string> output;  // texts of items
  std::string body;                 // the whole response, as JSON text
};
using StoredPtr = std::shared_ptr<const StoredResponse>;

// Any thread.
class ResponseStore {
 public:
  // `registry` must outlive this.
  ResponseStore(const ResponseStoreOptions& options, Registry& registry);

  bool enabled() const { return options_.max_bytes > 0; }
  // A response that is under way, with its input: what is kept of requests counts from their beginning. Those that were
  // used longest ago make room. One that is larger than all the room is not kept.
  void begin(int key, StoredResponse response);
  // It is over, and from now on there for clients, unless it had to make room meanwhile.
  void finish(int key, const std::string& id, std::vector<std::string> output, std::string body);
  // null: there is none, or not yet, or no longer, or it is another key's.
  StoredPtr find(int key, const std::string& id);
  bool erase(int key, const std::string& id);
  // The responses that led to this one, and it itself, the oldest first: all of them are as if used now. Errors: 400
  // where one of them is not there, or they have more than `most` bytes of items together.
  ApiResult<std::vector<StoredPtr>> history(int key, const std::string& id, size_t most);

 private:
  using Clock = std::chrono::steady_clock;
  struct Entry {
    int key;
    size_t bytes;
    Clock::time_point used;
    std::shared_ptr<StoredResponse> response;  // changed no more once it has a body
  };
  using Entries = std::list<Entry>;  // the last used one first

  Entries::iterator look_up(int key, const std::string& id);
  bool make_room(size_t bytes);
  void add(int key, StoredResponse response);
  void drop(Entries::iterator entry);
  void drop_old();
  void publish();

  ResponseStoreOptions options_;
  Gauge& bytes_gauge_;
  Gauge& count_gauge_;
  std::mutex mutex_;
  Entries entries_;
  std::unordered_map<std::string, Entries::iterator> by_id_;
  size_t bytes_ = 0;
};

}  // namespace quire::server
