// The program and a hub: commands, two processes at once, one that is killed, a disk that is full.
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "core/atomic_file.h"
#include "hub/hub_test.h"
#include "support/image_model.h"
#include "support/tiny_models.h"

extern char** environ;

namespace quire::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;

class HubProgram : public HubTest {
 protected:
  HubProgram() {
    for (const TinyModel& m : tiny_models())
      if (m.name == "tiny-qwen35") {
        EXPECT_TRUE(m.write_gguf(path("in-model.gguf")).ok());
      }
    hub_->add("org/real", "real-Q8_0.gguf", {.content = read_whole_file(path("in-model.gguf"))});
    hub_->add("org/real", "real-Q4_0.gguf", {.content = noise(5000, 9)});
  }
  std::string flags() const { return " --hub " + hub_->url() + " --hub-cache " + path("cache"); }

  pid_t start(const std::string& arguments) const {
    const std::string command = "exec " QUIRE_PROGRAM " " + arguments + " </dev/null >/dev/null 2>&1";
    const char* const argv[] = {"sh", "-c", command.c_str(), nullptr};
    pid_t pid = 0;
    EXPECT_EQ(posix_spawn(&pid, "/bin/sh", nullptr, nullptr, const_cast<char**>(argv), environ), 0);
    return pid;
  }
  static int wait_for(pid_t pid) {
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
};

TEST_F(HubProgram, PullsListsRunsAndRemoves) {
  const Outcome pulled = quire("pull org/real:Q8_0" + flags());
  ASSERT_EQ(pulled.code, 0) << pulled.err;
  const std::string file = path("cache/models--org--real/snapshots/") + FakeHub::kCommit + "/real-Q8_0.gguf";
  EXPECT_EQ(pulled.out, file + "\n");
  EXPECT_THAT(pulled.err, HasSubstr("as asked for"));
  const Outcome listed = quire("list --hub-cache " + path("cache"));
  EXPECT_THAT(listed.out, HasSubstr("org/real"));
  EXPECT_THAT(listed.out, HasSubstr("Q8_0"));
  const json all = json::parse(quire("list --json --hub-cache " + path("cache")).out);
  EXPECT_EQ(all.at(0).at("files").at(0).at("path"), "real-Q8_0.gguf");
  // Wherever a model is named; without a hub, too.
  const std::string run = " --tokens 1,2,3 -n 2 --json";
  const Outcome named = quire("run -m hf:org/real:Q8_0" + run + flags());
  ASSERT_EQ(named.code, 0) << named.err;
  const Outcome offline = quire("run -m hf:org/real" + run + " --offline --hub-cache " + path("cache"));
  ASSERT_EQ(offline.code, 0) << offline.err;
  EXPECT_EQ(json::parse(named.out).at("tokens"), json::parse(quire("run " + file + run).out).at("tokens"));
  EXPECT_EQ(json::parse(named.out).at("tokens"), json::parse(offline.out).at("tokens"));
  // Without "hf:", and by a short name of what is in the cache, for which no hub is asked.
  const Outcome bare = quire("run org/real:Q8_0" + run + flags());
  ASSERT_EQ(bare.code, 0) << bare.err;
  EXPECT_THAT(bare.err, HasSubstr("org/real:Q8_0 is no file here: it is taken for a model of http://"));
  EXPECT_EQ(json::parse(bare.out).at("tokens"), json::parse(named.out).at("tokens"));
  for (const char* word : {"real", "REAL", "real:Q8_0"}) {
    const Outcome brief =
        quire("run " + std::string(word) + run + " --hub http://127.0.0.1:1 --hub-cache " + path("cache"));
    ASSERT_EQ(brief.code, 0) << word << ": " << brief.err;
    EXPECT_EQ(json::parse(brief.out).at("tokens"), json::parse(named.out).at("tokens")) << word;
  }
  EXPECT_EQ(quire("inspect --json real --hub-cache " + path("cache")).code, 0);
  EXPECT_EQ(quire("inspect --json org/real:Q8_0" + flags()).code, 0);
  const Outcome removed = quire("rm org/real --hub-cache " + path("cache"));
  EXPECT_EQ(removed.code, 0) << removed.err;
  EXPECT_FALSE(fs::exists(path("cache/models--org--real")));
}

// A tower comes with the GGUF file that it lies beside, or above, and only once; it is found there, and goes with it.
TEST_F(HubProgram, TowersComeWithTheirModels) {
  const HfFolder folder;
  write_image_model(folder);
  ASSERT_EQ(quire("convert " + folder.path() + " -o " + path("m.gguf")).code, 0);
  hub_->add("org/sees", "Q8_0/m-Q8_0.gguf", {.path = path("m.gguf")});
  hub_->add("org/sees", "mmproj-BF16.gguf", {.path = path("mmproj-m.gguf")});
  hub_->add("org/sees", "mmproj-F32.gguf", {.content = noise(5000, 3)});
  const std::string snapshot = path("cache/models--org--sees/snapshots/") + FakeHub::kCommit;

  const Outcome text = quire("run hf:org/sees --no-mmproj --tokens 1,2,3 -n 2 --json" + flags());
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_FALSE(fs::exists(snapshot + "/mmproj-BF16.gguf"));
  EXPECT_THAT(quire("inspect " + snapshot + "/Q8_0/m-Q8_0.gguf").out, Not(HasSubstr("\nimages: ")));

  const Outcome pulled = quire("pull hf:org/sees --json" + flags());
  ASSERT_EQ(pulled.code, 0) << pulled.err;
  EXPECT_EQ(json::parse(pulled.out).at("mmproj"), snapshot + "/mmproj-BF16.gguf");
  EXPECT_FALSE(fs::exists(snapshot + "/mmproj-F32.gguf"));
  EXPECT_THAT(quire("inspect " + snapshot + "/Q8_0/m-Q8_0.gguf").out, HasSubstr("\nimages: "));
  const Outcome run = quire("run hf:org/sees --tokens 1,2,3 -n 2 --json" + flags());
  ASSERT_EQ(run.code, 0) << run.err;
  EXPECT_THAT(run.err, HasSubstr("org/sees: Q8_0 with its vision tower"));
  EXPECT_EQ(json::parse(run.out).at("tokens"), json::parse(text.out).at("tokens"));

  EXPECT_EQ(quire("rm org/sees:Q8_0 --hub-cache " + path("cache")).code, 0);
  EXPECT_FALSE(fs::exists(snapshot + "/mmproj-BF16.gguf"));
}

TEST_F(HubProgram, RefusesWhatItCannotDo) {
  const std::string to = flags();
  expect_refused("pull org/none" + to, "nothing of this name (404)");
  expect_refused("pull ../x" + to, "is no model's name on a hub");
  expect_refused("pull org/real:Q5_K" + to, "org/real has no Q5_K; there is Q4_0");
  expect_refused("pull org/real --offline --hub-cache " + path("cache"), "is not in the cache");
  expect_refused("rm org/real --hub-cache " + path("cache"), "is not in the cache");
  expect_refused("pull org/real --hub ftp://x", "--hub: 'ftp://x' is no URL");
  expect_refused("pull org/real --hub http://example.org --token-file " + write("in-token", "hf_x\n"),
                 "a token is not sent without TLS");
  for (const char* hub : {"http://127.evil.example", "http://127.0.0.1.evil.example", "http://localhost.evil.example"})
    expect_refused(std::string("pull org/real --hub ") + hub + " --token-file " + path("in-token"),
                   "a token is not sent without TLS");
  expect_refused("pull org/real --token-file " + write("in-token", "two words") + to, "a token is one line");
  expect_refused("pull org/real --hub-connections 0" + to, "must be between 1 and 64");
  expect_refused("run -m hf:org/none hello" + to, "nothing of this name (404)");
  expect_refused("run nothing-of-the-cache hello" + to, "nothing-of-the-cache: No such file or directory");
  expect_refused("run " + path("none") + " hello" + to, "none: No such file or directory");
  expect_refused("run org/none.gguf hello" + to, "org/none.gguf: No such file or directory");
  expect_refused("inspect hf:org/real --check" + to, "is not here");
  EXPECT_EQ(check_cache(), 0);
}

TEST_F(HubProgram, InspectsWithoutFetching) {
  const Outcome text = quire("inspect hf:org/real:Q8_0" + flags());
  ASSERT_EQ(text.code, 0) << text.err;
  for (const char* part :
       {"would it run   yes", "tokens/s at most", "longest context", "Q4_0", "architecture   qwen35"})
    EXPECT_THAT(text.out, HasSubstr(part));
  const Outcome o = quire("inspect --json hf:org/real:Q8_0" + flags());
  ASSERT_EQ(o.code, 0) << o.err;
  const json j = json::parse(o.out);
  EXPECT_EQ(j.at("hub").at("kinds").size(), 2u);
  EXPECT_TRUE(j.at("forecast").at("runs").get<bool>());
  // What the header says is what a local file's says.
  const json local = json::parse(quire("inspect --json " + path("in-model.gguf")).out);
  for (const char* key : {"architecture", "parameters", "tensor_bytes", "types", "memory", "unread_tensors"})
    EXPECT_EQ(j.at(key), local.at(key)) << key;
  const std::string url = hub_->url() + "/org/real/resolve/main/real-Q8_0.gguf";
  EXPECT_EQ(json::parse(quire("inspect --json " + url + " --hub " + hub_->url()).out).at("hub").at("kind"), "Q8_0");
  const json other =
      json::parse(quire("inspect --json " + hub_->cdn_url() + "/org/real/resolve/main/real-Q8_0.gguf").out);
  EXPECT_EQ(other.at("types"), local.at("types"));
  EXPECT_FALSE(fs::exists(path("cache")));
  const Outcome garbage = quire("inspect hf:org/real:Q4_0" + flags());
  EXPECT_EQ(garbage.code, 2);
  EXPECT_THAT(garbage.err, HasSubstr("it is no GGUF file"));
}

TEST_F(HubProgram, TwoAtOnceFetchOnce) {
  std::atomic<int> slow{0};
  hub_->set_trouble([&](const FakeRequest& r, FakePeer& peer) {
    if (r.cdn && slow++ == 0) peer.wait(500);
    return false;
  });
  const std::string pull = "pull org/tiny" + flags();
  const pid_t a = start(pull), b = start(pull);
  EXPECT_EQ(wait_for(a), 0);
  EXPECT_EQ(wait_for(b), 0);
  EXPECT_EQ(check_cache(), 1);
  uint64_t bytes = 0;
  for (const FakeRequest& r : hub_->seen())
    if (r.cdn && r.range) bytes += r.range->second - r.range->first + 1;
  EXPECT_EQ(bytes, kBig);
}

TEST_F(HubProgram, KilledAndResumed) {
  const std::string content = noise(size_t{32} << 20, 5);
  hub_->add("org/large", "large-Q4_0.gguf", {.content = content});
  std::atomic<uint64_t> sent{0};
  // Half of it comes, and then nothing for long.
  hub_->set_trouble([&](const FakeRequest& r, FakePeer& peer) {
    if (r.cdn && r.range && (sent += r.range->second - r.range->first + 1) > (16 << 20)) peer.wait(60'000);
    return false;
  });
  const pid_t pid = start("pull org/large" + flags());
  // Pieces that the map of the unfinished file says are there.
  const auto there = [&] {
    const std::string blob = path("cache/models--org--large/blobs/");
    std::ptrdiff_t n = 0;
    if (fs::exists(blob))
      for (const auto& f : fs::directory_iterator(blob))
        if (f.path().string().ends_with(".quire-map")) {
          const std::string map = read_whole_file(f.path());
          n += std::count(map.begin(), map.end(), '\1');
        }
    return n;
  };
  for (int i = 0; i < 1000 && there() == 0; ++i) usleep(20'000);
  kill(pid, SIGKILL);
  EXPECT_EQ(wait_for(pid), -SIGKILL);
  EXPECT_EQ(check_cache(), 0);
  hub_->set_trouble(nullptr);
  const size_t before = hub_->seen().size();
  const Outcome again = quire("pull org/large" + flags());
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(check_cache(), 1);
  uint64_t bytes = 0;
  const auto seen = hub_->seen();
  for (size_t i = before; i < seen.size(); ++i)
    if (seen[i].cdn && seen[i].range) bytes += seen[i].range->second - seen[i].range->first + 1;
  EXPECT_LT(bytes, content.size());
  EXPECT_GT(bytes, 0u);
}

TEST_F(HubProgram, FullDisksAreSaidAtOnce) {
  // As `ulimit -f`: no file may have more than 4 MB.
  const std::string command = "ulimit -f 8000; " QUIRE_PROGRAM " pull org/tiny" + flags() + " 2>" + path("err");
  const int status = std::system(("sh -c '" + command + "' >/dev/null").c_str());
  EXPECT_EQ(WEXITSTATUS(status), 2);
  EXPECT_THAT(read_whole_file(path("err")), HasSubstr("free space, or choose another --hub-cache"));
  EXPECT_EQ(check_cache(), 0);
  hub_->add("org/huge", "huge-Q4_0.gguf", {.content = noise(10)});
  hub_->set_trouble([](const FakeRequest& r, FakePeer& peer) {
    if (!r.is("/api/models/org/huge")) return false;
    peer.answer("200 OK", "",
                fmt::format(R"({{"sha": "{}", "siblings": [{{"rfilename": "huge-Q4_0.gguf",
        "lfs": {{"sha256": "{}", "size": 9000000000000000}}}}]}})",
                            FakeHub::kCommit, std::string(64, 'a')));
    return true;
  });
  expect_refused("pull org/huge:Q4_0" + flags(), "free space, or choose another --hub-cache");
}

}  // namespace
}  // namespace quire::test
