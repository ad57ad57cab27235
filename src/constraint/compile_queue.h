// Whose compilation begins next: clients take turns, and of one client's the smallest goes first.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

namespace quire {

// Not thread-safe.
class CompileQueue {
 public:
  struct Next {
    uint64_t id;
    std::string client;
  };

  void add(uint64_t id, const std::string& client, size_t size);
  // One that waits is forgotten; false: it does not wait here.
  bool remove(uint64_t id, const std::string& client);
  // The next one, which begins to run; none where nobody waits. With `last_place`, a client of whom one runs already
  // gets none: whoever comes next finds a place.
  std::optional<Next> next(bool last_place);
  // One of the client's begins to run without having waited here.
  void began(const std::string& client);
  // One that ran has ended.
  void ended(const std::string& client);

  size_t waiting() const { return waiting_; }
  size_t waiting_of(const std::string& client) const;
  int running_of(const std::string& client) const;

 private:
  struct Client {
    std::set<std::pair<size_t, uint64_t>> waiting;  // size and id
    std::map<uint64_t, size_t> sizes;
    int running = 0;
    uint64_t turn = 0;  // when one of its compilations began last, as a number that grows
  };
  void forget_idle(std::map<std::string, Client>::iterator client);

  std::map<std::string, Client> clients_;  // those of whom some wait or run
  size_t waiting_ = 0;
  uint64_t turns_ = 0;
};

}  // namespace quire
