// The small random models, loaded once, and prompts for them.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "support/golden.h"
#include "support/tiny_models.h"

namespace quire::test {

inline const ModelPtr& tiny(const std::string& name) {
  static std::map<std::string, ModelPtr> loaded;
  for (const TinyModel& m : tiny_models())
    if (m.name == name && loaded[name] == nullptr) loaded[name] = load_or_die(TinyModelFile(m).path());
  return loaded.at(name);
}

inline std::vector<TokenId> tokens(int64_t count, int32_t seed) {
  std::vector<TokenId> t(static_cast<size_t>(count));
  for (size_t i = 0; i < t.size(); ++i)
    t[i] = 30 + static_cast<TokenId>((i * 37 + i * i * 11 + static_cast<size_t>(seed) * 53) % 270);
  return t;
}

}  // namespace quire::test
