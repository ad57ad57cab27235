// The hub of tests as a program: serves what lies in a folder (ORG/NAME/files) until its standard input ends, after a
// line with its URL. Files below 100 kB are small ones, with Git's hash.
//   fake_hub FOLDER [KEY CERTIFICATE]
#include <cstdio>
#include <filesystem>

#include "hub/fake_hub.h"

int main(int argc, char** argv) {
  namespace fs = std::filesystem;
  if (argc != 2 && argc != 4) {
    std::fprintf(stderr, "fake_hub FOLDER [KEY CERTIFICATE]\n");
    return 2;
  }
  quire::test::FakeHub hub(argc == 4 ? argv[2] : "", argc == 4 ? argv[3] : "");
  for (const auto& entry : fs::recursive_directory_iterator(argv[1])) {
    const fs::path path = entry.path().lexically_relative(argv[1]);
    if (!entry.is_regular_file() || std::distance(path.begin(), path.end()) < 3) continue;
    const std::string model = (*path.begin() / *std::next(path.begin())).string();
    hub.add(model, path.lexically_relative(model).string(),
            {.content = {}, .path = entry.path().string(), .large = entry.file_size() >= 100'000});
  }
  std::printf("%s\n", hub.url().c_str());
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
  return 0;
}
