#include "cache/host_tier.h"

#include <utility>

namespace quire {

HostTier::HostTier(const Options& options)
    : options_(options), next_(static_cast<size_t>(options.pages)), used_pages_(static_cast<size_t>(options.pages)) {
  for (int32_t i = options.pages; i-- > 0;) next_[static_cast<size_t>(i)] = std::exchange(free_, i);
  outs_.reserve(static_cast<size_t>(options.moves));
  ins_.reserve(static_cast<size_t>(options.moves));
}

int32_t HostTier::take(int32_t pages) {
  QUIRE_CHECK(pages > 0 && pages <= free_count(), "{} pages of the host, of which {} are free", pages, free_count());
  const int32_t first = free_;
  int32_t last = first;
  for (int32_t i = first, n = 0; n < pages; ++n, i = next_[static_cast<size_t>(i)]) {
    used_pages_[static_cast<size_t>(i)] = true;
    last = i;
  }
  free_ = std::exchange(next_[static_cast<size_t>(last)], -1);
  used_ += pages;
  return first;
}

void HostTier::give_back(int32_t chain) {
  int32_t last = chain;
  for (int32_t i = chain; i >= 0; i = next_[static_cast<size_t>(i)]) {
    QUIRE_CHECK(used_pages_[static_cast<size_t>(i)], "page {} of the host is free already", i);
    used_pages_[static_cast<size_t>(i)] = false;
    --used_;
    last = i;
  }
  next_[static_cast<size_t>(last)] = std::exchange(free_, chain);
}

std::vector<int32_t> HostTier::pages_of(int32_t chain) const {
  std::vector<int32_t> pages;
  for (; chain >= 0; chain = next_[static_cast<size_t>(chain)]) pages.push_back(options_.first + chain);
  return pages;
}

void HostTier::add_blocks(int32_t chain, std::span<const int32_t> blocks, std::vector<HostMove>& to) {
  for (const int32_t b : blocks) {
    QUIRE_CHECK(chain >= 0, "block {} has no page of the host", b);
    to.push_back({.device = b, .page = options_.first + chain});
    chain = next_[static_cast<size_t>(chain)];
  }
}

void HostTier::add_state(int32_t chain, int32_t slot, std::vector<HostMove>& to) {
  for (int32_t piece = 0; chain >= 0; ++piece, chain = next_[static_cast<size_t>(chain)])
    to.push_back({.device = slot, .piece = piece, .page = options_.first + chain});
}

void HostTier::store_blocks(int32_t chain, std::span<const int32_t> blocks) {
  add_blocks(chain, blocks, outs_);
}

void HostTier::load_blocks(int32_t chain, std::span<const int32_t> blocks) {
  add_blocks(chain, blocks, ins_);
}

void HostTier::end_step() {
  outs_.clear();
  ins_.clear();
}

bool HostTier::mark(int32_t chain, int32_t pages, std::vector<bool>& seen) const {
  for (; chain >= 0 && pages > 0; --pages, chain = next_[static_cast<size_t>(chain)]) {
    const auto i = static_cast<size_t>(chain);
    if (!used_pages_[i] || seen[i]) return false;
    seen[i] = true;
  }
  return chain < 0 && pages == 0;
}

Status HostTier::check() const {
  int32_t free = 0;
  for (int32_t i = free_; i >= 0; i = next_[static_cast<size_t>(i)]) {
    if (used_pages_[static_cast<size_t>(i)] || ++free > total())
      return Error{Fault::kBug, fmt::format("page {} of the host is free and used, or free twice", i)};
  }
  if (free + used_ != total())
    return Error{Fault::kBug, fmt::format("{} free + {} used pages of the host, of {}", free, used_, total())};
  return {};
}

}  // namespace quire
