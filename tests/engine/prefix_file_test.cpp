// A prefix cache that outlives its engine: what is found after a restart gives the same tokens as computing it again.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <random>

#include "engine/engine_rig.h"
#include "support/protected_backend.h"

namespace quire::test {
namespace {

using testing::HasSubstr;

std::vector<TokenId> seeded_tokens(uint64_t seed, int64_t count) {
  std::mt19937_64 random(seed);
  std::vector<TokenId> t(static_cast<size_t>(count));
  for (TokenId& x : t) x = std::uniform_int_distribution<TokenId>(30, 300)(random);
  return t;
}

EngineOptions with_prefix_cache() {
  EngineOptions o;
  o.threads = 1;
  o.context = 1024;
  o.max_sequences = 4;
  o.kv_tokens = 4096;
  o.prefix_cache = true;
  return o;
}

class PrefixFile : public testing::TestWithParam<const char*> {
 protected:
  PrefixFile() {
    std::string pattern = (std::filesystem::temp_directory_path() / "quire-test-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
    path_ = folder_ / "prefixes";
  }
  ~PrefixFile() override { std::filesystem::remove_all(folder_); }

  std::unique_ptr<Engine> make(const EngineOptions& o = with_prefix_cache(),
                               const BackendFactory& backend = make_backend) const {
    return make_engine(model_, o, backend);
  }
  static Heard run(Engine& engine, const std::vector<TokenId>& prompt, const std::string& salt = "") {
    Request r = request_of(prompt, 12);
    r.sampling.logprobs = 0;  // they show what tokens may hide
    r.cache_salt = salt;
    return hear_one(engine, std::move(r));
  }
  bool recurrent() const { return model_->model->config().has_state(); }

  ModelPtr model_ = tiny(GetParam());
  std::filesystem::path folder_, path_;
};
INSTANTIATE_TEST_SUITE_P(Models, PrefixFile, testing::Values("tiny-qwen35moe", "tiny-llama", "tiny-gptoss"),
                         [](const auto& of) {
                           const std::string name = of.param;
                           return name == "tiny-llama" ? "llama" : name == "tiny-gptoss" ? "windows" : "hybrid";
                         });

TEST_P(PrefixFile, WhatIsFoundAfterARestartIsTheSameBits) {
  std::vector<std::vector<TokenId>> prompts;
  std::vector<Heard> first;
  for (uint64_t i = 0; i < 4; ++i) {
    prompts.push_back(seeded_tokens(1, 200));
    const std::vector<TokenId> own = seeded_tokens(i + 2, 150);
    prompts.back().insert(prompts.back().end(), own.begin(), own.end());
  }
  PrefixFileContent kept;
  {
    const auto engine = make();
    for (const auto& p : prompts) first.push_back(run(*engine, p));
    kept = engine->save_prefixes(path_, int64_t{1} << 30).value();
    EXPECT_EQ(kept.chunks, 3 + 4 * 2);
    EXPECT_EQ(kept.states, recurrent() ? 5 : 0);
    EXPECT_EQ(kept.bytes, static_cast<int64_t>(std::filesystem::file_size(path_)));
    EXPECT_EQ(std::filesystem::status(path_).permissions(),
              std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  }
  for (const bool guarded : {false, true}) {
    const auto engine = guarded ? make(with_prefix_cache(), make_protected_backend) : make();
    const PrefixFileContent read = engine->load_prefixes(path_).value();
    EXPECT_EQ(read.chunks, kept.chunks);
    EXPECT_EQ(read.states, kept.states);
    EXPECT_EQ(read.skipped, 0);
    EXPECT_TRUE(engine->check().ok());
    EXPECT_EQ(engine->stats().pools[kKvPool].cached, 4 * kept.chunks);
    for (size_t i = 0; i < prompts.size(); ++i) {
      const Heard h = run(*engine, prompts[i]);
      EXPECT_EQ(h.cached, 320);
      EXPECT_EQ(h.tokens, first[i].tokens);
      EXPECT_EQ(h.logprobs, first[i].logprobs);
    }
    // And once more, from what was read.
    EXPECT_EQ(engine->save_prefixes(path_, int64_t{1} << 30).value().chunks, kept.chunks);
  }
}

TEST_P(PrefixFile, SaltsAreToldApartAfterARestart) {
  const std::vector<TokenId> prompt = seeded_tokens(1, 200);
  {
    const auto engine = make();
    run(*engine, prompt, "alice");
    engine->save_prefixes(path_, int64_t{1} << 30).value();
  }
  EXPECT_EQ(read_whole_file(path_).find("alice"), std::string::npos);
  const auto engine = make();
  engine->load_prefixes(path_).value();
  const Heard stranger = run(*engine, prompt, "bob");
  EXPECT_EQ(stranger.cached, 0);
  EXPECT_EQ(stranger.miss, PrefixMiss::kNew);
  EXPECT_EQ(run(*engine, prompt).cached, 0);
  EXPECT_EQ(run(*engine, prompt, "alice").cached, 192);
}

TEST_P(PrefixFile, KeepsWhatWasUsedLast) {
  std::vector<std::vector<TokenId>> prompts;
  const auto engine = make();
  for (uint64_t i = 0; i < 6; ++i) run(*engine, prompts.emplace_back(seeded_tokens(i + 1, 200)));
  run(*engine, prompts[1]);
  const int64_t all = engine->save_prefixes(path_, int64_t{1} << 30).value().bytes;
  // A third of the file: the two prompts that were used last.
  const PrefixFileContent some = engine->save_prefixes(path_, all * 9 / 24).value();
  EXPECT_EQ(some.chunks, 6);
  EXPECT_LE(some.bytes, all * 9 / 24);
  EXPECT_EQ(some.skipped, 12);
  {
    const auto next = make();
    next->load_prefixes(path_).value();
    for (size_t i = 0; i < 6; ++i) EXPECT_EQ(run(*next, prompts[i]).cached > 0, i == 1 || i == 5) << i;
  }
  EXPECT_EQ(engine->save_prefixes(path_, 100).value().chunks, 0) << "and what was there stays";
  EXPECT_EQ(static_cast<int64_t>(std::filesystem::file_size(path_)), some.bytes);
  // A smaller pool takes what was used last, too.
  engine->save_prefixes(path_, int64_t{1} << 30).value();
  EngineOptions small = with_prefix_cache();
  small.context = small.kv_tokens = 7 * 64;
  small.state_checkpoints = 2;
  const auto next = make(small);
  const PrefixFileContent read = next->load_prefixes(path_).value();
  EXPECT_EQ(read.chunks, 7);
  EXPECT_EQ(read.states, recurrent() ? 2 : 0);
  EXPECT_EQ(read.skipped, 11);
  EXPECT_TRUE(next->check().ok());
  EXPECT_EQ(run(*next, prompts[1]).cached, 192);
  EXPECT_EQ(run(*next, seeded_tokens(99, 400)).cached, 0) << "which others can push out";
}

// What has left the device for the host's memory is in the file as well, and comes back to wherever there is room.
TEST_P(PrefixFile, KeepsWhatIsOnTheHost) {
  EngineOptions o = with_prefix_cache();
  o.kv_tokens = o.context;
  o.state_checkpoints = 2;
  o.prefix_host_bytes = int64_t{16} << 20;
  std::vector<Heard> first;
  const auto prompt = [](uint64_t i) { return seeded_tokens(i + 1, 300); };
  PrefixFileContent kept;
  {
    const auto engine = make(o, make_protected_backend);
    for (uint64_t i = 0; i < 6; ++i) first.push_back(run(*engine, prompt(i)));
    EXPECT_GT(engine->stats().host_bytes_stored, 0);
    kept = engine->save_prefixes(path_, int64_t{1} << 30).value();
    EXPECT_EQ(kept.chunks, 6 * 4);
    EXPECT_EQ(kept.states, recurrent() ? 6 : 0);
    EXPECT_EQ(kept.skipped, 0);
  }
  EngineOptions roomy = with_prefix_cache();
  roomy.state_checkpoints = 8;
  for (const EngineOptions& like : {o, roomy}) {
    const auto engine = make(like, make_protected_backend);
    const PrefixFileContent read = engine->load_prefixes(path_).value();
    EXPECT_EQ(read.chunks, kept.chunks);
    EXPECT_EQ(read.states, kept.states);
    EXPECT_EQ(read.skipped, 0);
    EXPECT_EQ(engine->stats().host_pages_used > 0, like.prefix_host_bytes > 0);
    EXPECT_TRUE(engine->check().ok());
    for (uint64_t i = 6; i-- > 0;) {
      const Heard again = run(*engine, prompt(i));
      EXPECT_EQ(again.cached, 256) << i;
      EXPECT_EQ(again.tokens, first[i].tokens);
      EXPECT_EQ(again.logprobs, first[i].logprobs);
    }
    EXPECT_EQ(engine->stats().host_bytes_loaded > 0, like.prefix_host_bytes > 0);
    EXPECT_EQ(engine->save_prefixes(path_, int64_t{1} << 30).value().chunks, kept.chunks);
  }
  // Without room on the host what was used last is taken.
  o.prefix_host_bytes = 0;
  const auto engine = make(o);
  EXPECT_EQ(engine->load_prefixes(path_).value().chunks, 16);
}

TEST_P(PrefixFile, IsOfNoUseToOthers) {
  {
    const auto engine = make();
    EXPECT_EQ(engine->save_prefixes(path_, int64_t{1} << 30).value().chunks, 0);
    EXPECT_FALSE(std::filesystem::exists(path_)) << "nothing to keep";
    EXPECT_THAT(engine->load_prefixes(path_).error().message, HasSubstr("No such file"));
    run(*engine, seeded_tokens(1, 200));
    engine->save_prefixes(path_, int64_t{1} << 30).value();
  }
  EngineOptions latency = with_prefix_cache();
  latency.arithmetic = Arithmetic::kLatency;
  for (const EngineOptions& o : {latency, [] {
                                   EngineOptions r = with_prefix_cache();
                                   r.device = Device::kReference;
                                   return r;
                                 }()}) {
    const auto engine = make(o);
    const auto read = engine->load_prefixes(path_);
    ASSERT_FALSE(read.ok());
    EXPECT_EQ(read.error().fault, Fault::kModelFile);
    EXPECT_THAT(read.error().message, HasSubstr("written by another engine"));
    EXPECT_EQ(engine->stats().pools[kKvPool].cached, 0);
  }
  // One bit of the last block, or of a state: everything before it is given up again.
  std::string bytes = read_whole_file(path_);
  bytes[bytes.size() - 100] = static_cast<char>(bytes[bytes.size() - 100] ^ 1);
  std::ofstream(path_, std::ios::binary) << bytes;
  const auto engine = make();
  EXPECT_THAT(engine->load_prefixes(path_).error().message, HasSubstr("damaged: the checksum of record 2 is wrong"));
  EXPECT_EQ(engine->stats().pools[kKvPool].cached, 0);
  for (const PoolUse& pool : engine->stats().pools) EXPECT_EQ(pool.cached, 0) << pool.name;
  EXPECT_TRUE(engine->check().ok());
  EXPECT_EQ(run(*engine, seeded_tokens(1, 200)).cached, 0);
}

// Whatever came there in the meantime is left as it is: only a file of the same kind is replaced.
TEST_P(PrefixFile, ReplacesNothingButItsKind) {
  const auto engine = make();
  run(*engine, seeded_tokens(1, 200));
  const auto save = [&] { return engine->save_prefixes(path_, int64_t{1} << 30); };
  for (const std::string& other :
       {std::string(), std::string("QUIREPF"), std::string("GGUF") + std::string(500, 'x')}) {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << other;
    EXPECT_THAT(check_prefix_place(path_).error().message, HasSubstr("no prefix cache, and it is not replaced"));
    EXPECT_FALSE(save().ok());
    EXPECT_EQ(read_whole_file(path_), other);
  }
  std::filesystem::remove(path_);
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_THAT(save().error().message, HasSubstr("no regular file"));
  std::filesystem::remove(path_);
  ASSERT_TRUE(check_prefix_place(path_).ok());
  ASSERT_TRUE(save().ok());
  std::ofstream(path_, std::ios::binary | std::ios::in | std::ios::out).seekp(300) << "damage";
  EXPECT_TRUE(check_prefix_place(path_).ok());
  EXPECT_TRUE(save().ok());
}

}  // namespace
}  // namespace quire::test
