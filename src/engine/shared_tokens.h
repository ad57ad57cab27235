// The tokens of a prompt, held once however many requests and sequences have it.
#pragma once

#include <initializer_list>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/id.h"

namespace quire {

// Reads like a vector; a copy shares the tokens. Tokens that are shared never change, so copies may be used by several
// threads at once.
class SharedTokens {
 public:
  SharedTokens() = default;
  SharedTokens(std::vector<TokenId> tokens)  // NOLINT(google-explicit-constructor): what a prompt is made from
      : tokens_(std::make_shared<std::vector<TokenId>>(std::move(tokens))) {}
  SharedTokens(std::initializer_list<TokenId> tokens) : SharedTokens(std::vector<TokenId>(tokens)) {}

  const std::vector<TokenId>& vector() const {
    static const std::vector<TokenId> none;
    return tokens_ ? *tokens_ : none;
  }
  operator std::span<const TokenId>() const { return vector(); }  // NOLINT(google-explicit-constructor)
  size_t size() const { return vector().size(); }
  bool empty() const { return vector().empty(); }
  const TokenId* data() const { return vector().data(); }
  const TokenId& operator[](size_t i) const { return vector()[i]; }
  auto begin() const { return vector().begin(); }
  auto end() const { return vector().end(); }
  friend bool operator==(const SharedTokens& a, const SharedTokens& b) { return a.vector() == b.vector(); }

  // To change them: of this copy alone, which gets tokens of its own if others share these.
  std::vector<TokenId>& edit() {
    if (!tokens_ || tokens_.use_count() > 1) tokens_ = std::make_shared<std::vector<TokenId>>(vector());
    return *tokens_;
  }

 private:
  std::shared_ptr<std::vector<TokenId>> tokens_;
};

}  // namespace quire
