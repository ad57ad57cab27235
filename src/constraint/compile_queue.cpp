#include "constraint/compile_queue.h"

#include <utility>

namespace quire {

void CompileQueue::add(uint64_t id, const std::string& client, size_t size) {
  Client& its = clients_[client];
  its.waiting.emplace(size, id);
  its.sizes.emplace(id, size);
  ++waiting_;
}

bool CompileQueue::remove(uint64_t id, const std::string& client) {
  const auto at = clients_.find(client);
  if (at == clients_.end()) return false;
  const auto size = at->second.sizes.find(id);
  if (size == at->second.sizes.end()) return false;
  at->second.waiting.erase({size->second, id});
  at->second.sizes.erase(size);
  --waiting_;
  forget_idle(at);
  return true;
}

std::optional<CompileQueue::Next> CompileQueue::next(bool last_place) {
  auto best = clients_.end();
  for (auto c = clients_.begin(); c != clients_.end(); ++c) {
    if (c->second.waiting.empty() || (last_place && c->second.running > 0)) continue;
    const auto rank = [](const Client& x) { return std::pair(x.running, x.turn); };
    if (best == clients_.end() || rank(c->second) < rank(best->second)) best = c;
  }
  if (best == clients_.end()) return std::nullopt;
  Client& its = best->second;
  const uint64_t id = its.waiting.begin()->second;
  its.waiting.erase(its.waiting.begin());
  its.sizes.erase(id);
  --waiting_;
  ++its.running;
  its.turn = ++turns_;
  return Next{id, best->first};
}

void CompileQueue::began(const std::string& client) {
  Client& its = clients_[client];
  ++its.running;
  its.turn = ++turns_;
}

void CompileQueue::ended(const std::string& client) {
  const auto at = clients_.find(client);
  if (at == clients_.end()) return;
  --at->second.running;
  forget_idle(at);
}

size_t CompileQueue::waiting_of(const std::string& client) const {
  const auto at = clients_.find(client);
  return at == clients_.end() ? 0 : at->second.waiting.size();
}

int CompileQueue::running_of(const std::string& client) const {
  const auto at = clients_.find(client);
  return at == clients_.end() ? 0 : at->second.running;
}

void CompileQueue::forget_idle(std::map<std::string, Client>::iterator client) {
  if (client->second.waiting.empty() && client->second.running == 0) clients_.erase(client);
}

}  // namespace quire
