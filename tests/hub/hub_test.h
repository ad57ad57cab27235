// A hub that misbehaves, a cache in a folder of its own, and the promise that holds whatever happens.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>

#include "hub/cache.h"
#include "hub/fake_hub.h"
#include "hub/hash.h"
#include "hub/pull.h"
#include "support/program.h"

namespace quire::test {

// Bytes that look like nothing else, the same for the same seed.
inline std::string noise(size_t bytes, uint32_t seed = 1) {
  std::string text(bytes, '\0');
  for (char& c : text) {
    seed = seed * 1664525 + 1013904223;
    c = static_cast<char>(seed >> 24);
  }
  return text;
}

class HubTest : public ProgramTest {
 protected:
  static constexpr size_t kBig = (9 << 20) + 12345;  // three pieces
  HubTest() : hub_(std::make_unique<FakeHub>()) {
    hub_->add("org/tiny", "tiny-Q4_K_M.gguf", {.content = noise(kBig)});
    hub_->add("org/tiny", "README.md", {.content = "read me", .large = false});
  }

  hub::HubOptions options() {
    hub::HubOptions o;
    o.cache = path("cache");
    o.http.hub = *hub::Url::parse(hub_->url() + "/");
    o.http.patience = {.connect = std::chrono::milliseconds(2000),
                       .head = std::chrono::milliseconds(400),
                       .stall = std::chrono::milliseconds(400),
                       .stall_bytes = 4096,
                       .attempts = 3,
                       .pause = std::chrono::milliseconds(5),
                       .longest_wait = std::chrono::milliseconds(2000)};
    o.connections = 3;
    o.place = {.what = "a machine", .bytes = int64_t{64} << 30, .gpu = false};
    return o;
  }
  Result<hub::Pulled> pull(const std::string& model, const hub::HubOptions& o) {
    const auto name = hub::ModelName::parse(model);
    EXPECT_TRUE(name.ok()) << name.error().message;
    return hub::pull(*name, o);
  }
  Result<hub::Pulled> pull(const std::string& model = "org/tiny") { return pull(model, options()); }

  // Every blob has the content that its name says, every link of a snapshot leads to one, and nothing was written
  // beside the cache. How many blobs there are.
  int check_cache() const {
    namespace fs = std::filesystem;
    int blobs = 0;
    for (const auto& entry : fs::directory_iterator(folder_)) {
      const std::string name = entry.path().filename();
      EXPECT_TRUE(name == "cache" || name == "out" || name == "err" || name.starts_with("in-")) << name;
    }
    if (!fs::exists(path("cache"))) return 0;
    for (const auto& entry : fs::recursive_directory_iterator(path("cache"))) {
      const std::string name = entry.path().filename();
      if (entry.is_symlink()) {
        EXPECT_TRUE(fs::is_regular_file(entry.path())) << entry.path();
        const std::string real = fs::canonical(entry.path());
        EXPECT_TRUE(real.starts_with(fs::canonical(path("cache")).string())) << real;
      } else if (entry.is_regular_file() && entry.path().parent_path().filename() == "blobs" &&
                 name.find(".quire-") == std::string::npos) {
        EXPECT_EQ(*hub::hash_file(entry.path(), name), name);
        ++blobs;
      }
    }
    return blobs;
  }

  std::unique_ptr<FakeHub> hub_;
};

}  // namespace quire::test
