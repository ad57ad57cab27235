// What one client's bodies do to the others: nothing that these could notice, and never the end of the server.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <future>
#include <thread>

#include "server/client.h"
#include "server/demo_server.h"
#include "server/serve_program.h"
#include "support/sanitizers.h"

namespace quire::test {
namespace {

using Clock = std::chrono::steady_clock;
using testing::HasSubstr;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

Json long_stream(int tokens) {
  return {{"prompt", "Once upon a time"}, {"max_tokens", tokens}, {"ignore_eos", true}, {"stream", true}};
}

// Tasks that keep every thread of a server's pool from doing anything else until they are let go.
class BusyPool {
 public:
  explicit BusyPool(server::RequestPool& pool) {
    for (int i = 0; i < pool.threads(); ++i) {
      server::RequestPool::Task task{.client = fmt::format("test {}", i)};
      task.run = [this, open = open_] {
        ++running_;
        open.wait();
      };
      task.refuse = [](const server::ApiError&) {};
      EXPECT_TRUE(pool.submit(std::move(task)).ok());
    }
    EXPECT_TRUE(eventually([&] { return running_ == pool.threads(); }));
  }
  ~BusyPool() { release(); }
  void release() {
    if (!std::exchange(released_, true)) promise_.set_value();
  }

 private:
  std::atomic<int> running_{0};
  bool released_ = false;
  std::promise<void> promise_;
  std::shared_future<void> open_{promise_.get_future().share()};
};

// With every thread of the pool at something that does not end, streams go on and whoever asks how the server is hears
// it.
TEST(Stalls, StreamsAndGetNeverWaitForThePool) {
  DemoServer s(DemoServer::Options{});
  Client stream(s.port());
  stream.send(post("/v1/completions", long_stream(300)));
  stream.receive_until([](const std::string& r) { return r.find("data: ") != std::string::npos; }, 60);
  BusyPool busy(s.api().pool());
  for (const char* path : {"/health", "/metrics", "/load", "/v1/models", "/props"})
    EXPECT_EQ(ask(s.port(), get(path), 60).status, 200) << path;
  stream.receive_until([](const std::string& r) { return r.find("data: [DONE]") != std::string::npos; }, 120);
  EXPECT_THAT(stream.received(), HasSubstr("data: [DONE]"));
  // What has a body waits, is answered when it has its turn, and is dropped when nobody waits for it.
  const auto waiting = [&](double count) {
    return eventually([&] { return s.metric("quire:request_pool_waiting_requests") == count; });
  };
  Client patient(s.port());
  patient.send(post("/tokenize", Json{{"prompt", "a"}}));
  EXPECT_TRUE(waiting(1));
  {
    Client gone(s.port());
    gone.send(post("/v1/completions", long_stream(300)));
    EXPECT_TRUE(waiting(2));
  }
  EXPECT_TRUE(waiting(1));
  busy.release();
  EXPECT_EQ(patient.receive().status, 200);
  EXPECT_EQ(s.http().held_body_bytes(), 0u);
}

TEST(Stalls, WaitingCountsAsPartOfTheTime) {
  DemoServer::Options o;
  o.api.request_timeout = std::chrono::milliseconds(50);
  DemoServer s(o);
  BusyPool busy(s.api().pool());
  const Reply r = ask(s.port(), post("/tokenize", Json{{"prompt", "a"}}), 60);
  EXPECT_EQ(r.status, 503);
  EXPECT_EQ(r.json()["error"]["code"], "deadline_exceeded");
  EXPECT_EQ(s.metric("quire:request_pool_waiting_requests"), 0);
}

TEST(Stalls, WhatWaitsAtTheEndIsTold) {
  DemoServer s(DemoServer::Options{});
  Client waits(s.port());
  std::future<void> end;
  {
    BusyPool busy(s.api().pool());
    waits.send(post("/tokenize", Json{{"prompt", "a"}}));
    EXPECT_TRUE(eventually([&] { return s.metric("quire:request_pool_waiting_requests") == 1; }));
    end = std::async(std::launch::async, [&] { s.api().forget(); });
    const Reply r = waits.receive();
    EXPECT_EQ(r.status, 503);
    EXPECT_EQ(r.json()["error"]["code"], "shutting_down");
  }
  end.get();
}

TEST(Stalls, TheQueueHasAnEnd) {
  DemoServer::Options o;
  o.api.pool.threads = 2;
  o.api.pool.max_waiting = 2;
  DemoServer s(o);
  BusyPool busy(s.api().pool());
  Client first(s.port());
  first.send(post("/tokenize", Json{{"prompt", "a"}}));
  EXPECT_TRUE(eventually([&] { return s.metric("quire:request_pool_waiting_requests") == 1; }));
  const Reply r = ask(s.port(), post("/tokenize", Json{{"prompt", "a"}}), 60);
  EXPECT_EQ(r.status, 429);
  EXPECT_EQ(r.header("Retry-After"), "1");
  busy.release();
  EXPECT_EQ(first.receive().status, 200);
}

// ---- Attacks ----

constexpr size_t kAttackBytes = 9'400'000;

std::string repeated(std::string_view text, size_t bytes = kAttackBytes) {
  std::string all;
  all.reserve(bytes + text.size());
  while (all.size() < bytes) all += text;
  return all;
}
std::string with_prompt(const std::string& text) {
  return R"({"prompt":")" + text + R"(","max_tokens":1})";
}

struct Attack {
  const char* name;
  std::string body;
};
std::vector<Attack> attacks() {
  std::string object = "{";
  for (int i = 0; object.size() < kAttackBytes; ++i) object += fmt::format("\"k{}\":{{}},", i);
  return {
      {"an object of many members", object + R"("prompt":"a"})"},
      {"an array of numbers", R"({"prompt":[0)" + repeated(",0") + "]}"},
      {"open arrays", repeated("[")},
      {"a plain text", with_prompt(repeated("The quick brown fox jumps over the lazy dog. "))},
      {"combining marks", with_prompt("a" + repeated("\xcc\x81\xcc\xa7"))},
      {"one word", with_prompt(repeated("a"))},
      {"beginnings of a special token", with_prompt(repeated("<|im_start"))},
  };
}

// The longest that a stream was silent, and that /health took, while something else went on.
class Witness {
 public:
  explicit Witness(uint16_t port)
      : stream_([this, port] { watch_stream(port); }), health_([this, port] {
          while (!stop_) {
            const auto start = Clock::now();
            if (ask(port, get("/health"), 60).status != 200) ++failures_;
            longest_health_ = std::max(longest_health_, seconds_since(start));
          }
        }) {}
  void end() {
    stop_ = true;
    stream_.join();
    health_.join();
  }
  double longest_gap_ = 0, longest_health_ = 0;
  std::atomic<int> failures_{0};

 private:
  void watch_stream(uint16_t port) {
    while (!stop_) {
      Client c(port);
      c.send(post("/v1/completions", long_stream(1500)));
      size_t seen = 0;
      const auto more = [&](const std::string& r) { return r.size() > seen; };
      c.receive_until(more, 60);
      while (!stop_ && c.received().find("data: [DONE]", std::max<size_t>(seen, 20) - 20) == std::string::npos) {
        seen = c.received().size();
        const auto start = Clock::now();
        c.receive_until(more, 60);
        if (c.received().size() == seen) return void(++failures_);
        longest_gap_ = std::max(longest_gap_, seconds_since(start));
      }
    }
  }
  std::atomic<bool> stop_{false};
  std::thread stream_, health_;
};

// An idle machine shows some tens of milliseconds. Where such work holds up everybody, they wait for as long as one or
// two of the four requests take. A machine that others keep busy may need more than one try; the tests above need none.
TEST(Stalls, NoBodyHoldsUpOthers) {
  if (kSlow) GTEST_SKIP() << "sanitizers make this work many times as long";
  DemoServer::Options o;
  // Texts are tokenized that the model itself could not take.
  o.context_options = [](server::ModelContext::Options& m) { m.context = int64_t{1} << 20; };
  DemoServer s(o);
  for (const Attack& attack : attacks()) {
    double gap = 0, health = 0, took = 0, most = 0;
    for (int attempt = 0; attempt < 3; ++attempt) {
      Witness witness(s.port());
      const auto start = Clock::now();
      std::vector<std::future<int>> replies;
      for (int i = 0; i < 4; ++i)
        replies.push_back(std::async(std::launch::async, [&] {
          return ask(s.port(), post("/v1/completions", std::string_view(attack.body)), 300).status;
        }));
      for (auto& r : replies) EXPECT_THAT(r.get(), testing::AnyOf(200, 400)) << attack.name;
      took = seconds_since(start);
      witness.end();
      EXPECT_EQ(witness.failures_, 0);
      gap = witness.longest_gap_;
      health = witness.longest_health_;
      most = std::max(0.4, 0.15 * took);
      if (gap < most && health < most) break;
    }
    fmt::print("{}: {:.2f} s for four; the longest silence of a stream {:.0f} ms, of /health {:.0f} ms\n", attack.name,
               took, gap * 1e3, health * 1e3);
    EXPECT_LT(gap, most) << attack.name;
    EXPECT_LT(health, most) << attack.name;
  }
}

// ---- Memory ----

int64_t kib_of(pid_t pid, const std::string& field) {
  std::ifstream status(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(field + ":")) return std::stoll(line.substr(field.size() + 1));
  ADD_FAILURE() << "no " << field << " in /proc/" << pid << "/status";
  return 0;
}

// Has this process get no more address space.
void end_of_memory() {
  const auto room = static_cast<rlim_t>(kib_of(getpid(), "VmSize")) * 1024;
  const rlimit limit{room, RLIM_INFINITY};
  if (setrlimit(RLIMIT_AS, &limit) != 0) std::abort();
}

// A process of its own, as what it has of memory is taken away: it must not end in a destructor.
TEST(Memory, DocumentsGoWithoutAny) {
  if (kSlow) GTEST_SKIP() << "sanitizers have address space of their own";
  EXPECT_EXIT(
      {
        mallopt(M_MMAP_THRESHOLD, 1 << 20);  // so that nothing large comes from what was freed before
        auto parsed = server::parse_json(R"({"x":[[0)" + repeated(",0", 3'000'000) + "]]}");
        if (!parsed.ok()) std::abort();
        end_of_memory();
        { const server::JsonDocument gone = std::move(parsed).value(); }
        std::_Exit(0);
      },
      testing::ExitedWithCode(0), "");
}

constexpr size_t kBody = (size_t{16} << 20) - 100;

// Whatever part of a large request finds no memory: that request is told so, and nobody else notices.
TEST_F(ServeProgram, RequestsThatFindNoMemoryFailAlone) {
  if (kSlow) GTEST_SKIP() << "sanitizers take more address space than there would be";
  start("-np 2 -c 512 --no-access-log");
  const std::string small = post("/v1/completions", Json{{"prompt", "a"}, {"max_tokens", 1}});
  const std::string bodies[] = {
      with_prompt(repeated("word ", kBody - 50)),
      R"({"prompt":[0)" + repeated(",0", 3'900'000) + "]}",
      R"({"x":[[])" + repeated(",[[],{}]", 1'000'000) + "]}",
      R"({"x":[0)" + repeated("," + std::string(50, '[') + std::string(50, ']'), 700'000) + "]}",
      R"({"messages":[{"role":"user","content":[{"type":"text","text":"a"})" +
          repeated(R"(,{"type":"text","text":"a"})", 1'500'000) + "]}]}",
  };
  ASSERT_EQ(ask(port_, small).status, 200);
  int short_of_memory = 0;
  for (const int64_t mib : {4, 4, 6, 8, 8, 12, 12, 16, 24, 32, 48, 64, 96, 128, 192}) {  // beyond what it has then
    const auto room = static_cast<rlim_t>(kib_of(pid_, "VmSize") + mib * 1024) * 1024;
    const rlimit limit{room, RLIM_INFINITY};
    ASSERT_EQ(prlimit(pid_, RLIMIT_AS, &limit, nullptr), 0);
    for (const std::string& body : bodies) {
      const bool chat = body.starts_with(R"({"messages)");
      const Reply r = ask(port_, post(chat ? "/v1/chat/completions" : "/v1/completions", std::string_view(body)), 60);
      // 0: no answer within a minute, or the connection has closed.
      ASSERT_THAT(r.status, testing::AnyOf(400, 503))
          << mib << " MiB: " << body.substr(0, 40) << ", of " << kib_of(pid_, "VmSize") << " KiB\n"
          << read_whole_file(path("err"));
      if (r.status == 503) {
        ++short_of_memory;
        EXPECT_EQ(r.error(), "not enough memory for this request");
        EXPECT_EQ(r.json()["error"]["code"], "overloaded");
        EXPECT_EQ(r.header("Retry-After"), "1");
      }
      EXPECT_EQ(ask(port_, get("/health")).status, 200) << mib << " MiB: " << body.substr(0, 40);
      EXPECT_EQ(ask(port_, small).status, 200) << mib << " MiB: " << body.substr(0, 40);
    }
  }
  EXPECT_GT(short_of_memory, 5);
}

// Has VmHWM begin again from what this process takes of memory now.
void forget_peak() {
  std::ofstream("/proc/self/clear_refs") << 5;
}

TEST(Stalls, LargePromptsTakeLittleMemoryTogether) {
  if (kSlow) GTEST_SKIP() << "sanitizers take memory of their own";
  DemoServer::Options o;
  o.context_options = [](server::ModelContext::Options& m) { m.context = int64_t{1} << 20; };
  DemoServer s(o);
  ASSERT_EQ(ask(s.port(), post("/v1/completions", Json{{"prompt", "a"}, {"max_tokens", 1}})).status, 200);
  for (const auto& [name, text] : {std::pair<const char*, std::string>{"words", "word "},
                                   {"combining marks", "\xcc\x81\xcc\xa7"},
                                   {"one word", "a"}}) {
    const std::string request =
        post("/v1/completions", std::string_view(with_prompt("a" + repeated(text, kBody - 50))));
    forget_peak();
    const int64_t before = kib_of(getpid(), "VmHWM");
    std::vector<std::future<int>> replies;
    for (int i = 0; i < 4; ++i)
      replies.push_back(std::async(std::launch::async, [&] { return ask(s.port(), request).status; }));
    for (auto& r : replies) EXPECT_THAT(r.get(), 400) << "more tokens than the context holds";
    const int64_t peak = (kib_of(getpid(), "VmHWM") - before) >> 10;
    fmt::print("four prompts of 16 MiB ({}): {} MiB at their peak, {} MiB afterwards\n", name, peak,
               (kib_of(getpid(), "VmRSS") - before) >> 10);
    EXPECT_LT(peak, 900) << name;
  }
}

}  // namespace
}  // namespace quire::test
