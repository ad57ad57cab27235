#include "engine/picture_keys.h"

#include <cstring>

#include "ops/segments.h"

namespace quire {
namespace {

template <class T>
void append(std::vector<std::byte>& message, const T& value) {
  const size_t at = message.size();
  message.resize(at + sizeof value);
  std::memcpy(message.data() + at, &value, sizeof value);
}

}  // namespace

std::vector<Hash128> picture_keys(const KeyedHash& hash, std::string_view salt, const PromptImages& images) {
  std::vector<Hash128> keys;
  for (const PromptImage& image : images) {
    std::vector<std::byte> message(image.digest.begin(), image.digest.end());
    for (const char c : salt) message.push_back(static_cast<std::byte>(c));
    keys.push_back(hash(message));
  }
  return keys;
}

std::vector<Hash128> pictures_of_chunks(const KeyedHash& hash, const PromptImages& images, int64_t prompt_tokens) {
  std::vector<Hash128> of;
  if (images.empty()) return of;
  std::vector<std::byte> message;
  for (int64_t begin = 0; begin + kChunkTokens <= prompt_tokens; begin += kChunkTokens) {
    message.clear();
    for (size_t i = images.at(begin); i < images.size() && images[i].position < begin + kChunkTokens; ++i) {
      append(message, images[i].digest);
      append(message, images[i].position - begin);
      append(message, images[i].columns);
    }
    of.push_back(message.empty() ? Hash128{} : hash(message));
  }
  return of;
}

}  // namespace quire
