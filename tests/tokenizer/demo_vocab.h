// The vocabulary of the demo model, from wherever a copy of the model is.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <optional>
#include <string>

#include "gguf/reader.h"
#include "tokenizer/tokenizer.h"

namespace quire::test {

inline std::optional<std::string> find_demo_model() {
  const std::string root = QUIRE_SOURCE_DIR;
  for (const char* path : {"/models/demo-dense-nvfp4.gguf", "/models/demo-moe-nvfp4.gguf",
                           "/../shared/models/gguf/demo-dense-bf16.gguf"}) {
    if (std::filesystem::exists(root + path)) return root + path;
  }
  return {};
}

inline const Tokenizer* demo_tokenizer() {
  static const std::optional<Tokenizer> tokenizer = []() -> std::optional<Tokenizer> {
    const auto path = find_demo_model();
    if (!path) return {};
    auto file = gguf::File::open(*path);
    QUIRE_CHECK(file.ok(), "{}", file.error().message);
    auto t = Tokenizer::load(*file);
    QUIRE_CHECK(t.ok(), "{}: {}", *path, t.error().message);
    return std::move(t).value();
  }();
  return tokenizer ? &*tokenizer : nullptr;
}

#define QUIRE_NEEDS_DEMO_VOCAB(name)                       \
  const Tokenizer* name = ::quire::test::demo_tokenizer(); \
  if (name == nullptr) GTEST_SKIP() << "no demo model in models/ or ../shared/models/gguf"

}  // namespace quire::test
