// What PIL and transformers made of the pictures of the tests (make_golden.py).
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "hub/hash.h"
#include "image/decode.h"

namespace quire::image::test {

inline std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}

inline const nlohmann::json& golden() {
  static const nlohmann::json all = nlohmann::json::parse(read_file(QUIRE_SOURCE_DIR "/tests/data/image.json"));
  return all;
}

inline std::string picture(const std::string& name) {
  return read_file(QUIRE_SOURCE_DIR "/tests/fuzz/corpus/image/" + name);
}

inline Bytes bytes_of(std::string_view s) {
  return std::as_bytes(std::span(s));
}

template <class T>
std::string sha256(std::span<const T> values) {
  hub::BlobHash hash(std::string(64, '0'), values.size_bytes());
  hash.add(std::as_bytes(values));
  return hash.hex();
}

// As make_golden.py makes it.
inline Pixels noise(int64_t width, int64_t height, uint64_t seed) {
  Pixels p = std::move(Pixels::make(width, height)).value();
  for (uint64_t i = 0; i < static_cast<uint64_t>(width * height * 3); ++i) {
    uint64_t v = (i * 2654435761 + seed * 40503) & 0xffffffff;
    v ^= v >> 15;
    v = (v * 2246822519) & 0xffffffff;
    const auto b = static_cast<uint8_t>(v >> 24);
    p.row(0)[i] = seed % 3 == 0 ? static_cast<uint8_t>(b >= 128 ? 255 : 0) : b;
  }
  return p;
}

}  // namespace quire::image::test
