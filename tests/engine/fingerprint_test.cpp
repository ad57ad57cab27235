// The promise of the program: what a request gets depends on the request alone. 64 tokens of every golden
// prompt must be the same, token by token, in every setting of the engine and beside any other requests.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <map>

#include "ops/gemm/core.h"
#include "support/golden.h"

namespace quire::test {
namespace {

constexpr int64_t kContext = 1088;  // the longest golden prompt has 922 tokens

struct Fingerprint {
  std::vector<TokenId> tokens;
  std::string text;
  bool operator==(const Fingerprint&) const = default;
};

void PrintTo(const Fingerprint& f, std::ostream* out) {
  for (const TokenId t : f.tokens) *out << t << ' ';
  *out << '"' << f.text << '"';
}

struct Job {
  Request request;
  int64_t arrives = 0;       // before this step
  int64_t cancelled_at = 0;  // before this step; 0: never
};

// Runs the jobs to their ends, checking the books of the caches now and then.
std::vector<Fingerprint> run_jobs(const ModelPtr& model, EngineOptions options, const std::vector<Job>& jobs) {
  options.context = kContext;
  Result<std::unique_ptr<Engine>> created = Engine::create(model, options);
  QUIRE_CHECK(created.ok(), "{}", created.error().message);
  Engine& engine = **created;
  std::vector<Fingerprint> out(jobs.size());
  std::vector<std::optional<RequestId>> ids(jobs.size());
  for (int64_t step = 0;; ++step) {
    bool pending = false;
    for (size_t i = 0; i < jobs.size(); ++i) {
      pending |= jobs[i].arrives > step;
      if (jobs[i].arrives == step) {
        const Result<RequestId> id = engine.submit(jobs[i].request, [&out, i](const TokenEvent& e) {
          if (e.token() >= 0) out[i].tokens.push_back(e.token());
          out[i].text += e.text();
        });
        QUIRE_CHECK(id.ok(), "{}", id.error().message);
        ids[i] = *id;
      }
      if (ids[i] && jobs[i].cancelled_at > 0 && jobs[i].cancelled_at == step) engine.cancel(*ids[i]);
    }
    if (!engine.busy() && !pending) break;
    engine.step();
    if (step % 16 == 0) {
      EXPECT_TRUE(engine.check().ok());
    }
  }
  return out;
}

Request greedy(std::vector<TokenId> prompt) {
  Request r;
  r.prompt = std::move(prompt);
  r.max_tokens = 64;
  r.ignore_eos = true;
  return r;
}

Request sampled(std::vector<TokenId> prompt, uint64_t seed) {
  Request r = greedy(std::move(prompt));
  r.sampling.temperature = 0.8f;
  r.sampling.top_p = 0.95f;
  r.sampling.top_k = 60;
  r.sampling.repetition_penalty = 1.05f;
  r.sampling.seed = seed;
  return r;
}

class FingerprintTest : public testing::TestWithParam<const char*> {
 protected:
  FingerprintTest() : FingerprintTest(QUIRE_SOURCE_DIR "/models/" + std::string(GetParam()) + "-nvfp4.gguf") {}
  // Models stay for the whole process, and with each what it answers to every prompt by itself.
  explicit FingerprintTest(const std::string& file) : shared_(shared(file)), model_(shared_.model) {
    const std::string path = golden_folder() + GetParam();
    golden_ = load_golden(path + ".json", path + "-ppl.json");
  }

  void SetUp() override { ASSERT_NE(model_, nullptr) << "no model " << GetParam(); }

  struct Shared {
    ModelPtr model;
    std::vector<Fingerprint> alone;
  };
  static Shared& shared(const std::string& file) {
    static std::map<std::string, Shared> models;
    Shared& s = models[file];
    if (s.model == nullptr && std::filesystem::exists(file)) s.model = load_or_die(file);
    return s;
  }

  // Every prompt by itself, in an engine that has seen nothing else.
  std::vector<Fingerprint> alone(const EngineOptions& options, size_t prompts) const {
    std::vector<Fingerprint> out;
    for (size_t i = 0; i < prompts; ++i)
      out.push_back(run_jobs(model_, options, {{greedy(golden_.prompts[i].ids)}}).front());
    return out;
  }

  // The same in an engine for many with other settings than any below.
  const std::vector<Fingerprint>& usual() {
    if (shared_.alone.empty()) shared_.alone = alone({.threads = 2, .max_batch_tokens = 1024}, golden_.prompts.size());
    return shared_.alone;
  }

  // 16 requests: the golden prompts, arriving over 40 steps, and five others with a will of their own: drawn,
  // penalised, stopped by max_tokens, and one cancelled on the way.
  std::vector<Job> crowd() const {
    std::vector<Job> jobs;
    for (size_t i = 0; i < golden_.prompts.size(); ++i)
      jobs.push_back({greedy(golden_.prompts[i].ids), static_cast<int64_t>(i * 7 % 40)});
    for (size_t i = 0; i < 5; ++i) {
      std::vector<TokenId> prompt = golden_.prompts[golden_.prompts.size() - 1 - i].ids;
      prompt.resize(prompt.size() * (i + 1) / 5 + 1, prompt.front());
      Job other{sampled(std::move(prompt), i), static_cast<int64_t>(i * 9)};
      other.request.max_tokens = static_cast<int64_t>(10 + 30 * i);
      if (i == 3) other.cancelled_at = other.arrives + 13;
      jobs.push_back(std::move(other));
    }
    return jobs;
  }

  // x after all layers, of a prompt and two generated tokens.
  std::vector<std::vector<float>> layers(int sequences, const char* forced) const {
    std::vector<std::vector<float>> steps;
    EngineOptions options{.threads = 2, .max_sequences = sequences, .max_batch_tokens = 1024};
    if (forced != nullptr)
      for (const char* op : {"linear", "swiglu_mlp", "moe"}) options.kernels.forced.emplace_back(op, forced);
    options.probe = [&](std::string_view name, int layer, const Tensor& x) {
      if (name != "layer_out" || layer + 1 != model_->model->config().layers) return;
      const float* row = x.as<float>() + (x.dim(0) - 1) * x.stride[0];
      steps.emplace_back(row, row + x.dim(1));
    };
    Request request = greedy(golden_.prompts[0].ids);
    request.max_tokens = 3;
    run_jobs(model_, options, {{request}});
    return steps;
  }
  // That generated tokens of engines for few, and nothing else, take other kernels than `usual`: what comes
  // out of the layers has other bits then.
  void expect_others_for_generated_tokens_of_few(const char* usual) const {
    const auto few = layers(1, nullptr), many = layers(16, nullptr), forced = layers(1, usual);
    ASSERT_EQ(few.size(), 3u);
    EXPECT_EQ(many, forced);
    EXPECT_EQ(few[0], forced[0]) << "a prompt";
    EXPECT_NE(few[1], forced[1]) << "a generated token";
  }

  // Of the newest instructions that this CPU without AVX-512 has.
  static const char* integers() {
    const CpuFeatures& cpu = cpu_features();
    return cpu.i8mm       ? "integer_i8mm"
           : cpu.dotprod  ? "integer_dotprod"
           : cpu.avx_vnni ? "integer_avxvnni"
                          : gemm::kIntegerBaseName.data();
  }

  // Without AVX-512 integers are the kernels of all tokens and of all engines.
  void expect_integers_for_all_tokens() const {
    const auto few = layers(1, nullptr), many = layers(16, nullptr), floats = layers(1, kBaseLevel.data());
    ASSERT_EQ(few.size(), 3u);
    EXPECT_EQ(few, many);
    EXPECT_EQ(few, layers(1, integers()));
    for (size_t i = 0; i < few.size(); ++i) EXPECT_NE(few[i], floats[i]) << "step " << i;
  }

  void expect_same(const std::vector<Fingerprint>& want, const std::vector<Fingerprint>& got) const {
    for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(want[i], got[i]) << golden_.prompts[i].name;
  }

  Shared& shared_;
  ModelPtr model_;
  Golden golden_;
};

// Each setting differs from usual() in several ways at once: whatever makes a difference is one too many.
TEST_P(FingerprintTest, IsTheSameInEverySetting) {
  const std::vector<Fingerprint>& want = usual();
  ASSERT_EQ(want.front().tokens.size(), 64u);
  EXPECT_NE(want[0], want[1]);
  const std::vector<std::pair<std::string, EngineOptions>> settings = {
      {"16 requests, chunks of 128, three threads", {.threads = 3, .max_sequences = 16, .max_batch_tokens = 128}},
      {"whole prompts, shuffled blocks", {.threads = 2, .max_batch_tokens = 2048, .shuffle_blocks = 7}},
      {"blocks of one sequence: the others wait; chunks of 64, one thread",
       {.threads = 1, .max_batch_tokens = 64, .kv_tokens = kContext}},
      {"three places, shuffled blocks", {.threads = 2, .max_sequences = 3, .shuffle_blocks = 8}},
  };
  for (const auto& [name, options] : settings) {
    SCOPED_TRACE(name);
    expect_same(want, run_jobs(model_, options, crowd()));
  }
}

TEST_P(FingerprintTest, DoesNotDependOnChunksOrThreadsAlone) {
  const size_t last = golden_.prompts.size() - 1;  // 922 tokens
  const Job job{greedy(golden_.prompts[last].ids)};
  for (const auto& [chunk, threads] : {std::pair{64, 1}, {128, 2}, {512, 3}})
    EXPECT_EQ(usual()[last], run_jobs(model_, {.threads = threads, .max_batch_tokens = chunk}, {job}).front())
        << "chunks of " << chunk << ", " << threads << " threads";
}

// Engines for one or two sequences compute generated tokens with other kernels, and agree with each other.
TEST_P(FingerprintTest, IsTheSameInEveryEngineForFew) {
  const std::vector<Fingerprint> want = alone({.threads = 1, .max_sequences = 1}, golden_.prompts.size());
  ASSERT_EQ(want.front().tokens.size(), 64u);
  std::vector<std::pair<std::string, EngineOptions>> settings = {
      {"two, chunks of 64, three threads, shuffled blocks",
       {.threads = 3, .max_sequences = 2, .max_batch_tokens = 64, .shuffle_blocks = 9}},
      {"one after another", {.threads = 2, .max_sequences = 1, .max_batch_tokens = 128}},
      {"two, weights as they lie in the file", {.threads = 2, .max_sequences = 2, .repack = false}},
  };
  for (const auto& [name, options] : settings) {
    SCOPED_TRACE(name);
    expect_same(want, run_jobs(model_, options, crowd()));
  }
}

TEST_P(FingerprintTest, TakesIntegersForGeneratedTokensOfFewOnlyIfThereIsAvx512) {
  if (!cpu_features().avx512_bf16) return expect_integers_for_all_tokens();
  expect_others_for_generated_tokens_of_few(cpu_features().amx_bf16 ? "amx" : "avx512");
}

// The models in BF16, which are not in the repository.
class Bf16FingerprintTest : public FingerprintTest {
 protected:
  Bf16FingerprintTest()
      : FingerprintTest(QUIRE_SOURCE_DIR "/../shared/models/gguf/" + std::string(GetParam()) + "-bf16.gguf") {}
  void SetUp() override {
    if (model_ == nullptr) GTEST_SKIP() << "no bf16 model " << GetParam();
  }
};

TEST_P(Bf16FingerprintTest, TakesVectorsForGeneratedTokensOfFewOnly) {
  if (cpu_features().amx_bf16) return expect_others_for_generated_tokens_of_few("amx");
  // Without tiles everything is one core's.
  EXPECT_EQ(layers(1, nullptr), layers(16, nullptr));
}

TEST_P(Bf16FingerprintTest, IsTheSameInEveryEngineForFew) {
  const std::vector<Fingerprint> want = alone({.threads = 1, .max_sequences = 1}, 4);
  ASSERT_EQ(want.front().tokens.size(), 64u);
  expect_same(want, run_jobs(model_, {.threads = 2, .max_sequences = 2, .shuffle_blocks = 9}, crowd()));
}

// The same for the kernels of older CPUs. This one's own are what the other tests run.
TEST_P(FingerprintTest, HoldsForEveryFamilyOfKernels) {
  // Kernels of products, and of everything else.
  std::vector<std::pair<const char*, const char*>> older{{kBaseLevel.data(), kBaseLevel.data()}};
  if (cpu_features().amx_bf16) older.emplace_back("avx512", "avx512");
  if (cpu_features().avx512_bf16 || cpu_features().avx_vnni || cpu_features().dotprod)
    older.emplace_back(gemm::kIntegerBaseName.data(), kBaseLevel.data());
  if (cpu_features().avx512_bf16 && cpu_features().avx_vnni) older.emplace_back("integer_avxvnni", kBaseLevel.data());
  if (cpu_features().i8mm) older.emplace_back("integer_dotprod", kBaseLevel.data());
  for (const auto& [products, others] : older) {
    SCOPED_TRACE(products);
    EngineOptions options{.threads = 2};
    for (const char* op : {"linear", "swiglu_mlp", "moe"}) options.kernels.forced.emplace_back(op, products);
    for (const char* op : {"paged_attention", "gdn_prepare", "gdn_chunked", "gdn_recurrent", "add_rms_norm",
                           "gated_rms_norm", "attention_prepare"})
      options.kernels.forced.emplace_back(op, others);
    expect_same(alone(options, golden_.prompts.size()), run_jobs(model_, options, crowd()));
  }
}

TEST_P(FingerprintTest, SeededSamplingRepeats) {
  std::vector<Job> jobs = crowd();
  std::map<std::vector<TokenId>, int> different;
  std::vector<size_t> places;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    places.push_back(jobs.size());
    jobs.push_back({sampled(golden_.prompts[1].ids, seed), static_cast<int64_t>(11 * seed)});
  }
  const std::vector<Fingerprint> together = run_jobs(model_, {.threads = 2}, jobs);
  for (const size_t i : places) {
    const Fingerprint alone = run_jobs(model_, {.threads = 1}, {{jobs[i].request}}).front();
    EXPECT_EQ(alone, together[i]);
    EXPECT_EQ(alone.tokens.size(), 64u);
    ++different[alone.tokens];
  }
  EXPECT_EQ(different.size(), 4u) << "different seeds, different texts";
}

std::string short_name(const testing::TestParamInfo<const char*>& model) {
  return std::string(model.param).substr(5);
}
INSTANTIATE_TEST_SUITE_P(Models, FingerprintTest, testing::Values("demo-dense", "demo-moe"), short_name);
INSTANTIATE_TEST_SUITE_P(Models, Bf16FingerprintTest, testing::Values("demo-dense", "demo-moe"), short_name);

}  // namespace
}  // namespace quire::test
