// Records of steps: their lines, what happens when they come faster than they can be written, and files that cannot be
// written; and what `quire serve` records and counts.
#include "server/step_trace.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <set>
#include <sstream>
#include <thread>

#include "server/access_log.h"
#include "server/client.h"
#include "server/demo_server.h"
#include "support/program.h"

namespace quire::test {
namespace {

using server::StepTrace;

std::vector<Json> parsed(const std::string& text) {
  std::vector<Json> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(Json::parse(line));
  return lines;
}

class StepTraceTest : public ProgramTest {
 protected:
  std::unique_ptr<StepTrace> open(const std::string& file) {
    LineWriter::Options options = server::log_options(registry_, "steps", "--trace-steps");
    options.last = std::chrono::minutes(1);
    return std::move(StepTrace::open(file, std::move(options))).value();
  }
  server::Registry registry_;
};

TEST_F(StepTraceTest, ALineHasEverythingOfARecord) {
  StepRecord r{.step = 7,
               .time = 1700000000.25,
               .decode_rows = 3,
               .prompt_rows = 128,
               .drafts = 2,
               .accepted = 1,
               .running = 5,
               .waiting = 9};
  r.admitted = 2;
  r.queued = 3;
  r.deferred[static_cast<size_t>(Deferral::kSharedPrefix)] = 4;
  r.deferred[static_cast<size_t>(Deferral::kBlocks)] = 5;
  r.first_tokens = true;
  r.skipped = 6;
  r.pools.add({.name = "kv", .free = 10, .cached = 20, .used = 30});
  r.pools.add({.name = "window", .used = 15});
  r.swapped_out = 1;
  r.swapped_in = 2;
  r.host_stored = 8;
  r.host_loaded = 12;
  r.host_seconds = 0.00025;
  r.device_seconds = 0.5;
  const Json want = {
      {"engine", 0},
      {"step", 7},
      {"time", 1700000000.25},
      {"decode_rows", 3},
      {"drafts", 2},
      {"accepted", 1},
      {"prompt_tokens", 128},
      {"running", 5},
      {"waiting", 9},
      {"queued", 3},
      {"admitted", 2},
      {"deferred", {{"shared_prefix", 4}, {"blocks", 5}}},
      {"first_tokens", true},
      {"skipped", 6},
      {"pools",
       {{"kv", {{"free", 10}, {"cached", 20}, {"used", 30}}}, {"window", {{"free", 0}, {"cached", 0}, {"used", 15}}}}},
      {"swapped_out", 1},
      {"swapped_in", 2},
      {"host_stored", 8},
      {"host_loaded", 12},
      {"host_seconds", 0.00025},
      {"device_seconds", 0.5}};
  EXPECT_EQ(Json::parse(server::step_line(r)), want);
  EXPECT_EQ(Json::parse(server::step_line({}))["deferred"], Json::object());
}

TEST_F(StepTraceTest, IsWholeWhenItEnds) {
  write("steps", "{\"step\":0}\n");
  {
    const auto trace = open(path("steps"));
    for (int i = 1; i <= 1000; ++i) trace->add({.step = i}, 0);
  }
  const std::vector<Json> lines = parsed(read_whole_file(path("steps")));
  ASSERT_EQ(lines.size(), 1001u) << "what was there stays";
  for (int i = 0; i <= 1000; ++i) EXPECT_EQ(lines[static_cast<size_t>(i)]["step"], i);
}

// A pipe that nobody reads takes a few hundred lines, and the queue some ten thousand.
TEST_F(StepTraceTest, DropsWhatItCannotWriteInTimeAndSaysSo) {
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  const int reader = ::open(path("pipe").c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  constexpr int64_t kRecords = 30000;
  auto trace = open(path("pipe"));
  for (int64_t i = 1; i <= kRecords; ++i) trace->add({.step = i}, 0);
  const std::string metric = "quire:log_lines_dropped_total{log=\"steps\"} ";
  const std::string metrics = registry_.text();
  std::thread ender([t = std::move(trace)]() mutable { t.reset(); });
  ::fcntl(reader, F_SETFL, 0);
  std::string text;
  char buffer[4096];
  for (ssize_t n; (n = ::read(reader, buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<size_t>(n));
  ender.join();
  ::close(reader);
  int64_t written = 0, dropped = 0;
  for (const Json& line : parsed(text)) {
    if (line.contains("dropped")) {
      dropped += line["dropped"].get<int64_t>();
      continue;
    }
    ++written;
    EXPECT_EQ(line["step"], written + dropped) << "it says where they are missing";
  }
  EXPECT_GT(dropped, 0);
  EXPECT_EQ(written + dropped, kRecords);
  ASSERT_NE(metrics.find(metric), std::string::npos) << metrics;
  EXPECT_GT(std::stod(metrics.substr(metrics.find(metric) + metric.size())), 0.0);
}

TEST_F(StepTraceTest, ServeRefusesWhatItCannotDo) {
  const std::string serve = "serve -m " + demo_model_path() + " --port 0 ";
  expect_refused(serve + "--trace-steps " + path("no/such/folder"),
                 "--trace-steps: " + path("no/such/folder") + ": cannot be written");
  expect_refused(serve + "--kv-offloading-size -1", "--kv-offloading-size -1: must be between 0 and 65536 GiB");
  expect_refused(serve + "--first-token-first -1", "a threshold of -1 waiting prompts: must not be negative");
}

// Prompts with two beginnings, more of them than the cache has room for, so that everything there is to record happens.
TEST_F(StepTraceTest, AServiceRecordsEveryStepAndCountsIt) {
  const ModelPtr model = load_or_die(demo_model_path());
  EngineOptions o{.threads = 1, .context = 512, .max_sequences = 4, .max_batch_tokens = 128, .kv_tokens = 512};
  o.prefix_cache = true;
  o.state_checkpoints = 2;
  o.prefix_host_bytes = int64_t{64} << 20;
  o.first_token_threshold = 2;
  server::Registry registry;
  {
    auto engine = std::move(Engine::create(model, o)).value();
    auto metrics = std::make_shared<server::EngineMetrics>(registry, "demo", o.context, engine->pools());
    server::EngineService service(std::move(engine), {.max_queue = 64, .trace = open(path("steps"))}, metrics);
    std::atomic<int> ended{0};
    for (int round = 0; round < 3; ++round) {
      std::vector<server::Job> jobs;
      for (int i = 0; i < 8; ++i) {
        server::Job& job = jobs.emplace_back();
        std::vector<TokenId> prompt(200, 60 + i % 2 + 2 * round % 4);
        prompt.push_back(70 + i);
        job.request.prompt = std::move(prompt);
        job.request.max_tokens = 12;
        job.request.ignore_eos = true;
      }
      ASSERT_TRUE(
          service
              .submit(std::move(jobs), [&](size_t, const TokenEvent& e) { ended += e.finish() != FinishReason::kNone; })
              .ok());
      while (ended < 8 * (round + 1)) std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  }
  int64_t decoded = 0, prompts = 0, admitted = 0, stored = 0, loaded = 0, shared = 0, skipped = 0;
  const std::vector<Json> lines = parsed(read_whole_file(path("steps")));
  for (size_t i = 0; i < lines.size(); ++i) {
    const Json& l = lines[i];
    EXPECT_EQ(l["step"], i + 1);
    const Json& kv = l["pools"]["kv"];
    EXPECT_EQ(kv["free"].get<int>() + kv["cached"].get<int>() + kv["used"].get<int>(), 32);
    EXPECT_GT(l["host_seconds"], 0.0);
    EXPECT_GE(l["running"], l["admitted"]);
    decoded += l["decode_rows"].get<int64_t>();
    prompts += l["prompt_tokens"].get<int64_t>();
    admitted += l["admitted"].get<int64_t>();
    stored += l["host_stored"].get<int64_t>();
    loaded += l["host_loaded"].get<int64_t>();
    shared += l["deferred"].contains("shared_prefix");
    skipped += l["skipped"].get<int64_t>();
  }
  EXPECT_EQ(decoded, 24 * 11);
  EXPECT_EQ(admitted, 24);
  EXPECT_GT(stored, 0);
  EXPECT_GT(loaded, 0);
  EXPECT_GT(shared, 0);
  const std::string text = "\n" + registry.text();
  const auto value = [&](const std::string& name, const std::string& label = "") {
    const std::string key = "\n" + name + "{model_name=\"demo\",engine=\"0\"" + label + "} ";
    const size_t at = text.find(key);
    return at == std::string::npos ? -1.0 : std::stod(text.substr(at + key.size()));
  };
  const auto steps = static_cast<double>(lines.size());
  for (const char* name : {"quire:step_decode_rows", "quire:step_prompt_tokens", "quire:step_waiting_requests",
                           "quire:step_free_blocks_perc", "quire:step_host_seconds", "quire:step_device_seconds",
                           "vllm:iteration_tokens_total"})
    EXPECT_EQ(value(name + std::string("_count")), steps) << name;
  EXPECT_EQ(value("quire:engine_steps_total"), steps);
  EXPECT_EQ(value("quire:step_decode_rows_sum"), static_cast<double>(decoded));
  EXPECT_EQ(value("quire:step_prompt_tokens_sum"), static_cast<double>(prompts));
  EXPECT_EQ(value("quire:step_deferrals_total", ",reason=\"shared_prefix\""), static_cast<double>(shared));
  EXPECT_EQ(value("quire:step_skipped_tokens_total"), static_cast<double>(skipped));
  EXPECT_GT(value("vllm:kv_offload_store_bytes_total"), 0.0);
  EXPECT_GT(value("vllm:kv_offload_load_bytes_total"), 0.0);
  EXPECT_GT(value("quire:prefix_cache_host_hits_total"), 0.0);
  EXPECT_GT(value("vllm:kv_offload_cpu_cache_usage_perc"), 0.0);
  EXPECT_LT(value("vllm:kv_offload_cpu_cache_usage_perc"), 1.0);
}

TEST(Dashboard, AsksOnlyForWhatThereIs) {
  const Json board = Json::parse(read_whole_file(QUIRE_SOURCE_DIR "/dist/grafana-dashboard.json"));
  const std::string text = demo_server().registry().text();
  int names = 0;
  std::set<int> ids;
  for (const Json& panel : board["panels"]) {
    EXPECT_TRUE(ids.insert(panel["id"].get<int>()).second);
    for (const Json& target : panel["targets"]) {
      const auto asks = target["expr"].get<std::string>();
      for (size_t at = asks.find(':'); at != std::string::npos; at = asks.find(':', at + 1)) {
        const size_t begin = asks.find_last_not_of("abcdefghijklmnopqrstuvwxyz", at - 1) + 1,
                     end = asks.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_", at + 1);
        const std::string name = asks.substr(begin, end - begin);
        EXPECT_TRUE(text.find("\n" + name + "{") != std::string::npos ||
                    text.find("\n" + name + " ") != std::string::npos)
            << panel["title"] << ": " << name;
        ++names;
      }
    }
  }
  EXPECT_GT(names, 40);
}

}  // namespace
}  // namespace quire::test
