// Fetching from a hub that behaves: what lands where, what is asked for, who sees the token.
#include "hub/hub_test.h"
#include "support/tls_pair.h"

namespace quire::test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::UnorderedElementsAre;

class HubPull : public HubTest {
 protected:
  // Over one connection: gets a piece, and is refused the next one.
  void pull_the_first_part(hub::HubOptions& o) {
    hub_->set_trouble([](const FakeRequest& r, FakePeer& peer) {
      if (!r.cdn || !r.range || r.range->second < (8 << 20)) return false;
      peer.answer("410 Gone", "", "");
      return true;
    });
    o.connections = 1;
    ASSERT_FALSE(pull("org/tiny", o).ok());
  }
};

std::string content(const std::string& path) {
  return read_whole_file(path);
}

TEST_F(HubPull, LaysTheCacheOutAsOthersDo) {
  const auto pulled = pull();
  ASSERT_TRUE(pulled.ok()) << pulled.error().message;
  const std::string model = path("cache/models--org--tiny"), snapshot = model + "/snapshots/" + FakeHub::kCommit;
  EXPECT_EQ(pulled->path, snapshot + "/tiny-Q4_K_M.gguf");
  EXPECT_EQ(pulled->fetched, kBig);
  EXPECT_EQ(content(pulled->path), noise(kBig));
  EXPECT_EQ(content(model + "/refs/main"), FakeHub::kCommit);
  const std::string link = fs::read_symlink(pulled->path);
  EXPECT_EQ(link.substr(0, 12), "../../blobs/");
  EXPECT_EQ(link.size(), 12 + 64u);
  EXPECT_TRUE(fs::exists(path("cache/.locks/models--org--tiny/") + link.substr(12) + ".lock"));
  EXPECT_EQ(check_cache(), 1);
  // Nothing is asked for twice but the list.
  const size_t before = hub_->seen().size();
  const auto again = pull();
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->fetched, 0u);
  EXPECT_EQ(hub_->seen().size(), before + 1);
  hub::HubOptions offline = options();
  offline.offline = true;
  const auto there = pull("org/tiny", offline);
  ASSERT_TRUE(there.ok()) << there.error().message;
  EXPECT_EQ(there->path, pulled->path);
  EXPECT_EQ(hub_->seen().size(), before + 1);
  EXPECT_FALSE(pull("org/other", offline).ok());
}

TEST_F(HubPull, FetchesSeveralRangesAtOnce) {
  ASSERT_TRUE(pull().ok());
  EXPECT_GE(hub_->count([](const FakeRequest& r) { return r.cdn && r.range && r.range->first > 0; }), 1);
}

TEST_F(HubPull, FetchesFoldersByTheirIndex) {
  hub_->add("org/folder", "config.json", {.content = "{}", .large = false});
  hub_->add("org/folder", "model.safetensors.index.json",
            {.content = R"({"weight_map": {"a": "model-1.safetensors"}})", .large = false});
  hub_->add("org/folder", "model-1.safetensors", {.content = noise(100, 2)});
  hub_->add("org/folder", "model-other.safetensors", {.content = noise(100, 3)});
  hub_->add("org/folder", "model-empty.json", {.content = "", .large = false});
  const auto pulled = pull("org/folder");
  ASSERT_TRUE(pulled.ok()) << pulled.error().message;
  EXPECT_EQ(pulled->path, path("cache/models--org--folder/snapshots/") + FakeHub::kCommit);
  std::vector<std::string> names;
  for (const auto& f : fs::directory_iterator(pulled->path)) names.push_back(f.path().filename());
  EXPECT_THAT(names, UnorderedElementsAre("config.json", "model.safetensors.index.json", "model-1.safetensors",
                                          "model-empty.json"));
  EXPECT_EQ(check_cache(), 4);
  hub_->add("org/bad", "config.json", {.content = "{}", .large = false});
  hub_->add("org/bad", "model.safetensors.index.json",
            {.content = R"({"weight_map": {"a": "model-2.safetensors"}})", .large = false});
  hub_->add("org/bad", "model-1.safetensors", {.content = noise(100, 2)});
  const auto bad = pull("org/bad");
  ASSERT_FALSE(bad.ok());
  EXPECT_THAT(bad.error().message, HasSubstr("names 'model-2.safetensors', which is not there"));
}

TEST_F(HubPull, FetchesAllPartsAndFoldersWithin) {
  hub_->add("org/split", "Q8_0/m-Q8_0-00001-of-00002.gguf", {.content = noise(1000, 4)});
  hub_->add("org/split", "Q8_0/m-Q8_0-00002-of-00002.gguf", {.content = noise(1000, 5)});
  const auto pulled = pull("org/split:Q8_0");
  ASSERT_TRUE(pulled.ok()) << pulled.error().message;
  EXPECT_TRUE(pulled->path.ends_with("/Q8_0/m-Q8_0-00001-of-00002.gguf"));
  EXPECT_EQ(content(pulled->path), noise(1000, 4));
  EXPECT_EQ(check_cache(), 2);
}

TEST_F(HubPull, TheTokenStaysWithTheHub) {
  hub_->token = "hf_secret";
  const auto without = pull();
  ASSERT_FALSE(without.ok());
  EXPECT_THAT(without.error().message, HasSubstr("gated or private"));
  EXPECT_THAT(without.error().message, HasSubstr("--token-file"));
  hub::HubOptions o = options();
  o.http.token = "hf_wrong";
  EXPECT_THAT(pull("org/tiny", o).error().message, HasSubstr("the token is not allowed"));
  o.http.token = "hf_secret";
  ASSERT_TRUE(pull("org/tiny", o).ok());
  EXPECT_GE(hub_->count([](const FakeRequest& r) { return !r.cdn && r.headers.contains("authorization"); }), 2);
  EXPECT_GE(hub_->count([](const FakeRequest& r) { return r.cdn; }), 1);
  EXPECT_EQ(hub_->count([](const FakeRequest& r) { return r.cdn && r.headers.contains("authorization"); }), 0);
}

TEST_F(HubPull, ListsAndRemoves) {
  hub_->add("org/tiny", "tiny-Q8_0.gguf", {.content = noise(5000, 7)});
  ASSERT_TRUE(pull("org/tiny:Q4_K_M").ok());
  ASSERT_TRUE(pull("org/tiny:Q8_0").ok());
  const hub::Cache cache(path("cache"));
  ASSERT_EQ(cache.list().size(), 1u);
  EXPECT_EQ(cache.list()[0].id, "org/tiny");
  EXPECT_EQ(cache.list()[0].files.size(), 2u);
  EXPECT_THAT(cache.list()[0].refs, testing::ElementsAre("main"));
  const auto name = hub::ModelName::parse("org/tiny");
  const auto some = cache.remove(*name, [](const std::string& p) { return p == "tiny-Q8_0.gguf"; });
  ASSERT_TRUE(some.ok()) << some.error().message;
  EXPECT_EQ(*some, 5000u);
  EXPECT_EQ(check_cache(), 1);
  {
    const auto lock = hub::FileLock::take(cache.lock_path(*name, std::string(64, 'a')), true);
    EXPECT_THAT(cache.remove(*name, [](const std::string&) { return true; }).error().message,
                HasSubstr("org/tiny is being fetched"));
  }
  EXPECT_TRUE(cache.remove(*name, [](const std::string&) { return true; }).ok());
  EXPECT_FALSE(fs::exists(path("cache/models--org--tiny")));
  EXPECT_THAT(cache.remove(*name, [](const std::string&) { return true; }).error().message, HasSubstr("not in"));
}

TEST_F(HubPull, ResumesWhatIsThere) {
  hub::HubOptions o = options();
  pull_the_first_part(o);
  EXPECT_EQ(check_cache(), 0);
  hub_->set_trouble(nullptr);
  const int before = hub_->count([](const FakeRequest& r) { return r.cdn; });
  ASSERT_TRUE(pull("org/tiny", o).ok());
  EXPECT_EQ(check_cache(), 1);
  const auto seen = hub_->seen();
  EXPECT_EQ(hub_->count([](const FakeRequest& r) { return r.cdn; }), before + 1);
  EXPECT_EQ(seen.back().range->first, uint64_t{8} << 20);
}

TEST_F(HubPull, DamagedPartsAreFetchedAnew) {
  hub::HubOptions o = options();
  pull_the_first_part(o);
  for (const auto& f : fs::directory_iterator(path("cache/models--org--tiny/blobs")))
    if (f.path().string().ends_with(".quire-part")) {
      std::fstream part(f.path(), std::ios::in | std::ios::out | std::ios::binary);
      part.seekp(1000);
      part << "damage";
    }
  hub_->set_trouble(nullptr);
  ASSERT_TRUE(pull("org/tiny", o).ok());
  EXPECT_EQ(check_cache(), 1);
}

TEST_F(HubPull, SpeaksTlsWithThoseItTrusts) {
  write_tls_pair(path("in-key"), path("in-cert"));
  hub_ = std::make_unique<FakeHub>(path("in-key"), path("in-cert"));
  hub_->add("org/tiny", "tiny-Q4_K_M.gguf", {.content = noise(kBig)});
  hub::HubOptions o = options();
  o.http.tls = *hub::TlsContext::create("");
  const auto stranger = pull("org/tiny", o);
  ASSERT_FALSE(stranger.ok());
  EXPECT_THAT(stranger.error().message, HasSubstr("its certificate is not trusted"));
  o.http.tls = *hub::TlsContext::create(path("in-cert"));
  const auto pulled = pull("org/tiny", o);
  ASSERT_TRUE(pulled.ok()) << pulled.error().message;
  EXPECT_EQ(check_cache(), 1);
  // The right certificate of another host.
  write_tls_pair(path("in-key"), path("in-other"));
  EXPECT_FALSE(hub::TlsContext::create(path("in-key")).ok());
}

}  // namespace
}  // namespace quire::test
