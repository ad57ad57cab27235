#include "engine/waiting_queue.h"

#include <algorithm>
#include <utility>

#include "core/result.h"

namespace quire {

int32_t WaitingQueue::aged(int32_t priority, int64_t age) const {
  if (priority <= options_.top_priority) return priority;
  const int64_t lacks = int64_t{priority} - options_.top_priority;
  return static_cast<int32_t>(options_.top_priority + (lacks >> std::min<int64_t>(age / options_.ageing_steps, 62)));
}

int32_t WaitingQueue::running(uint64_t client) const {
  const auto at = clients_.find(client);
  return at == clients_.end() ? 0 : at->second.running;
}

void WaitingQueue::reserve(size_t looked_at) {
  heap_.reserve(looked_at);
  seen_.reserve(looked_at);
}

// After its items or what it runs have changed. `listed`: whether it is in the order under its old rank.
void WaitingQueue::reorder(Client& c, bool listed) {
  auto node = listed ? order_.extract(c.rank) : decltype(order_)::node_type();
  if (c.items.empty()) return;
  const Key& first = c.items.begin()->first;
  c.rank = {first.priority, c.running, std::max(first.arrival, c.since)};
  if (node.empty()) {
    order_.emplace(c.rank, &c);
    return;
  }
  node.key() = c.rank;
  order_.insert(std::move(node));
}

void WaitingQueue::add(int64_t id, uint64_t client, int32_t priority, int64_t step) {
  Client& c = clients_[client];
  const bool listed = !c.items.empty();
  const Key key{aged(priority, 0), ++stamps_};
  c.items.emplace(key, Item{id, priority, step});
  const bool added = positions_.emplace(id, Position{client, key}).second;
  QUIRE_CHECK(added, "request {} waits already", id);
  if (key.priority > options_.top_priority) due_.emplace(step + options_.ageing_steps, id);
  reorder(c, listed);
}

void WaitingQueue::take_out(int64_t id, int64_t admitted) {
  const auto at = positions_.find(id);
  QUIRE_CHECK(at != positions_.end(), "request {} does not wait", id);
  const Position position = at->second;
  positions_.erase(at);
  Client& c = clients_.at(position.client);
  c.items.erase(position.key);
  if (admitted >= 0) {
    ++c.running;
    c.since = ++stamps_;
    c.admitted = admitted;
  }
  reorder(c, true);
  forget_if_idle(position.client);
}

void WaitingQueue::remove(int64_t id) {
  take_out(id, -1);
}

void WaitingQueue::admit(int64_t id, int64_t step) {
  take_out(id, step);
}

void WaitingQueue::end(uint64_t client) {
  const auto at = clients_.find(client);
  QUIRE_CHECK(at != clients_.end() && at->second.running > 0, "client {} has nothing that runs", client);
  --at->second.running;
  reorder(at->second, !at->second.items.empty());
  forget_if_idle(client);
}

void WaitingQueue::forget_if_idle(uint64_t id) {
  const auto at = clients_.find(id);
  if (at->second.items.empty() && at->second.running == 0) clients_.erase(at);
}

void WaitingQueue::age(int64_t step) {
  while (!due_.empty() && due_.begin()->first <= step) {
    auto due = due_.extract(due_.begin());
    const auto at = positions_.find(due.mapped());
    if (at == positions_.end()) continue;
    Position& position = at->second;
    Client& c = clients_.at(position.client);
    auto item = c.items.extract(position.key);
    const int64_t age = step - item.mapped().arrived;
    position.key.priority = item.key().priority = aged(item.mapped().priority, age);
    c.items.insert(std::move(item));
    reorder(c, true);
    if (position.key.priority <= options_.top_priority) continue;
    due.key() = step + options_.ageing_steps - age % options_.ageing_steps;
    due_.insert(std::move(due));
  }
}

void WaitingQueue::begin(int64_t step) {
  ++walk_;
  walk_step_ = step;
  walk_stamps_ = stamps_;
  front_ = order_.begin();
  heap_.clear();
  current_.reset();
  seen_.clear();
}

std::optional<WaitingQueue::Entry> WaitingQueue::next() {
  constexpr auto kLater = [](const Cursor& a, const Cursor& b) { return b.rank < a.rank; };
  // Whoever was given counts as if it ran: others have their turn.
  if (current_ && ++current_->item != current_->client->items.end()) {
    Cursor c = *current_;
    c.rank = {c.item->first.priority, c.rank.running + 1, ++walk_stamps_};
    heap_.push_back(c);
    std::push_heap(heap_.begin(), heap_.end(), kLater);
  }
  current_.reset();
  if (front_ != order_.end() && (heap_.empty() || front_->first < heap_.front().rank)) {
    Client* const c = front_->second;
    current_ = {front_->first, c, c->items.begin()};
    ++front_;
  } else if (!heap_.empty()) {
    std::pop_heap(heap_.begin(), heap_.end(), kLater);
    current_ = heap_.back();
    heap_.pop_back();
  }
  if (!current_) return std::nullopt;
  return entry(*current_->client, current_->item);
}

WaitingQueue::Entry WaitingQueue::entry(Client& c, Items::const_iterator item) {
  if (std::exchange(c.walk, walk_) != walk_) {
    c.seen = static_cast<int32_t>(seen_.size());
    seen_.push_back(
        {.running = c.running, .since = c.since, .idle = c.admitted < 0 ? INT64_MAX : walk_step_ - c.admitted});
  }
  return {.id = item->second.id,
          .priority = item->first.priority,
          .age = walk_step_ - item->second.arrived,
          .arrival = item->first.arrival,
          .client = c.seen};
}

}  // namespace quire
