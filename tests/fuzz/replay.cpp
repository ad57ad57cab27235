// Runs every fuzz target without libFuzzer, in builds of any kind: over its corpus, and over copies of that with bytes
// changed. So it is known without clang that they link and what they find. A target that finds something aborts.
//   test_fuzz CORPUS [ROUNDS]       CORPUS: tests/fuzz/corpus; ROUNDS: changed copies of each file, 200 by default
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <string_view>
#include <vector>

// A row for each tests/fuzz/fuzz_NAME.cpp, whose function CMake has named so (cmake/QuireLayer.cmake).
#define QUIRE_FUZZ_TARGET(name) extern "C" int fuzz_##name(const uint8_t* data, size_t size);
#include "fuzz_targets.inc"
#undef QUIRE_FUZZ_TARGET

namespace {

using Bytes = std::vector<uint8_t>;

struct Target {
  const char* name;
  int (*run)(const uint8_t*, size_t);
};

constexpr Target kTargets[] = {
#define QUIRE_FUZZ_TARGET(name) {#name, fuzz_##name},
#include "fuzz_targets.inc"
#undef QUIRE_FUZZ_TARGET
};

// The files of the target's corpus, in the order of their names; a target that has none gets random bytes.
std::vector<Bytes> corpus_of(const std::filesystem::path& folder, std::mt19937& random) {
  std::vector<std::filesystem::path> names;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) names.push_back(entry.path());
  std::sort(names.begin(), names.end());
  std::vector<Bytes> all;
  for (const auto& name : names) {
    std::ifstream in(name, std::ios::binary);
    all.emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  if (all.empty())
    for (const size_t size : {0, 1, 16, 256, 4096}) {
      all.emplace_back(size);
      for (uint8_t& b : all.back()) b = static_cast<uint8_t>(random());
    }
  return all;
}

// Of whose inputs a change of the corpus may not leave fewer: pictures come from everybody.
constexpr struct {
  std::string_view name;
  long least;
} kLeast[] = {{"image", 10'000}};

// A copy with some bytes changed, a piece removed or said twice.
Bytes changed(Bytes b, std::mt19937& random) {
  const auto at = [&] { return static_cast<std::ptrdiff_t>(random() % (b.size() + 1)); };
  for (uint32_t n = 1 + random() % 4; n > 0 && !b.empty(); --n) {
    const std::ptrdiff_t from = at(), to = from + std::min<std::ptrdiff_t>(random() % 64, std::ssize(b) - from);
    switch (random() % 3) {
      case 0:
        b[random() % b.size()] = static_cast<uint8_t>(random());
        break;
      case 1:
        b.erase(b.begin() + from, b.begin() + to);
        break;
      default: {
        const Bytes piece(b.begin() + from, b.begin() + to);
        b.insert(b.begin() + at(), piece.begin(), piece.end());
      }
    }
  }
  return b;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) {
    std::fprintf(stderr, "usage: test_fuzz CORPUS [ROUNDS]\n");
    return 2;
  }
  const int rounds = argc == 3 ? std::atoi(argv[2]) : 200;
  for (const Target& t : kTargets) {
    std::mt19937 random(1);
    long runs = 0;
    for (const Bytes& file : corpus_of(std::filesystem::path(argv[1]) / t.name, random)) {
      t.run(file.data(), file.size());
      for (int i = 0; i < rounds; ++i, ++runs) {
        const Bytes copy = changed(file, random);
        t.run(copy.data(), copy.size());
      }
    }
    std::printf("%s: %ld changed inputs\n", t.name, runs);
    for (const auto& [name, least] : kLeast)
      if (argc == 2 && name == t.name && runs < least) {
        std::fprintf(stderr, "%s: at least %ld changed inputs are wanted; the corpus has too few files\n", t.name,
                     least);
        return 1;
      }
  }
  return 0;
}
