// A made-up device: the CPU, whose work is late. Texts are those of the CPU, whatever an engine does in the meantime.
#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <thread>

#include "engine/constraints.h"
#include "engine/cpu_device.h"
#include "engine/engine_rig.h"

namespace quire::test {
namespace {

class LateDevice final : public CpuDevice {
 public:
  using CpuDevice::CpuDevice;

 private:
  void enter() override { std::this_thread::sleep_for(std::chrono::microseconds(200)); }
};

Result<std::unique_ptr<ComputeDevice>> make_late(const std::shared_ptr<const LoadedModel>& model,
                                                 const EnginePlan& options) {
  return std::unique_ptr<ComputeDevice>(std::make_unique<LateDevice>(model, options));
}

// Prompts of several lengths, drawn and greedy, some held to a form.
std::vector<std::vector<TokenId>> texts(const ModelPtr& model, const BackendFactory& backend) {
  const EngineOptions options{
      .threads = 2, .context = 300, .max_sequences = 3, .max_batch_tokens = 64, .kv_tokens = 512, .depth = 2};
  const auto engine = std::move(Engine::create(model, options, backend)).value();
  std::deque<std::vector<TokenId>> heard;
  for (int32_t i = 0; i < 8; ++i) {
    Request r;
    r.prompt.edit() = tokens(3 + 29 * i, i);
    r.max_tokens = 12;
    r.ignore_eos = true;
    if (i % 2 == 0) r.sampling.temperature = 1.0f;
    r.sampling.seed = static_cast<uint64_t>(i);
    if (i % 3 == 0 && has_grammars()) r.constraint = constraint_of(model, {GrammarKind::kRegex, "[a-z0-9]{3,40}"});
    std::vector<TokenId>& to = heard.emplace_back();
    engine
        ->submit(r,
                 [&to](const TokenEvent& e) {
                   if (e.token() >= 0) to.push_back(e.token());
                 })
        .value();
  }
  while (engine->busy()) engine->step();
  return {heard.begin(), heard.end()};
}

TEST(LateDevice, GivesTheTextsOfTheCpu) {
  for (const char* name : {"tiny-qwen35moe", "tiny-llama"}) {
    SCOPED_TRACE(name);
    const std::vector<std::vector<TokenId>> want = texts(tiny(name), make_backend);
    for (const std::vector<TokenId>& t : want) EXPECT_GE(t.size(), 3u);
    EXPECT_EQ(texts(tiny(name), backend_over(make_late)), want);
  }
}

}  // namespace
}  // namespace quire::test
