// A GPU that is lost in the middle of a run, by a kernel that traps: every request ends, nothing hangs, and a new
// engine in the process says in one line why there is none.
#include <gtest/gtest.h>

#include "core/cuda/check.h"
#include "engine/engine.h"
#include "support/failing_backend.h"
#include "support/tiny_models.h"

namespace quire::cuda_test {
namespace {

__global__ void trap() {
  __trap();
}

std::shared_ptr<const LoadedModel> load() {
  for (test::TinyModel m : test::tiny_models()) {
    if (m.name != "tiny-qwen35moe") continue;
    m.head_dim = 64, m.state = 128;  // shapes that the GPU's kernels take
    const test::TinyModelFile file(m);
    auto model = load_model(file.path());
    QUIRE_CHECK(model.ok(), "{}", model.error().message);
    return std::move(model).value();
  }
  fatal(__FILE__, __LINE__, "no such model");
}

// The exit status: 0 if everything ended as it should.
[[noreturn]] void run(int step) {
  const auto expect = [](bool holds, const std::string& what) {
    if (holds) return;
    std::fprintf(stderr, "%s\n", what.c_str());
    std::_Exit(1);
  };
  test::Loss loss{.step = step};
  loss.error = []() -> std::optional<Error> {
    trap<<<1, 1>>>();
    static_cast<void>(cudaDeviceSynchronize());
    return std::nullopt;
  };
  const auto model = load();
  const EngineOptions options{.device = Device::kCuda, .context = 256, .max_sequences = 4};
  auto engine = Engine::create(model, options, test::failing_backend(loss));
  expect(engine.ok(), engine.ok() ? "" : engine.error().message);
  int ends = 0, errors = 0;
  std::string said;
  for (int i = 0; i < 8; ++i) {
    Request r;
    for (TokenId t = 0; t < 20 + 30 * i; ++t) r.prompt.edit().push_back(40 + t % 90);
    r.max_tokens = 20;
    r.ignore_eos = true;
    const auto id = (*engine)->submit(r, [&](const TokenEvent& e) {
      ends += e.finish() != FinishReason::kNone;
      errors += e.finish() == FinishReason::kError;
      if (e.error() != nullptr) said = e.error()->message;
    });
    expect(id.ok(), "a request was refused");
  }
  for (int i = 0; (*engine)->busy(); ++i) {
    expect(i < 10000, "the engine never ends");
    (*engine)->step();
  }
  (*engine)->drain_events();
  expect(ends == 8, fmt::format("{} ends of 8", ends));
  expect(errors > 0 && said.starts_with("the device is lost: ") && said.find('\n') == std::string::npos, said);
  expect((*engine)->lost().has_value(), "the engine does not know");
  std::fprintf(stderr, "%s\n", said.c_str());
  engine->reset();
  const auto again = Engine::create(model, options);
  expect(!again.ok() && again.error().message.find('\n') == std::string::npos, "a new engine on a lost device");
  std::fprintf(stderr, "%s\n", again.error().message.c_str());
  std::_Exit(0);
}

// In a process of its own: what a trap does to a process cannot be undone.
TEST(CudaDeviceLossDeathTest, EveryRequestEnds) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (const int step : {0, 3, 9}) EXPECT_EXIT(run(step), testing::ExitedWithCode(0), "the device is lost");
}

}  // namespace
}  // namespace quire::cuda_test
