// While an engine serves, planning, building, computing and committing steps allocate nothing.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <random>

#include "engine/engine_rig.h"

namespace {
std::atomic<bool> counting_allocations{false};
std::atomic<int64_t> allocations{0};
// The thread that delivers: texts and listeners may take memory.
thread_local bool exempt = false;
}  // namespace

// This program counts what it allocates. (Not inlined: GCC 12 then warns of a new that does not match its delete.)
[[gnu::noinline]] void* operator new(size_t size, const std::nothrow_t&) noexcept {
  if (counting_allocations.load(std::memory_order_relaxed) && !exempt)
    allocations.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(size);
}
[[gnu::noinline]] void* operator new(size_t size) {
  if (void* p = operator new(size, std::nothrow)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept {
  std::free(p);
}
[[gnu::noinline]] void operator delete(void* p, size_t) noexcept {
  std::free(p);
}

namespace quire::test {
namespace {

void serve_without_allocating(const ModelPtr& model, int depth, bool share_and_swap) {
  EngineOptions o{.threads = share_and_swap ? 1 : 2,  // a team waits for each other, which is slow on a busy machine
                  .context = 400,
                  .max_sequences = 6,
                  .max_batch_tokens = 128,
                  .kv_tokens = share_and_swap ? 400 : 1600,
                  .depth = depth};
  o.prefix_cache = share_and_swap;
  o.swap_bytes = o.prefix_host_bytes = share_and_swap ? int64_t{1} << 20 : 0;
  if (share_and_swap) o.state_checkpoints = 4;
  const auto engine = make_engine(model, o);
  std::mt19937_64 rng(5);
  const auto number = [&](int64_t lo, int64_t hi) { return std::uniform_int_distribution<int64_t>(lo, hi)(rng); };
  std::vector<RequestId> ids;
  for (int i = 0; i < 400; ++i) {
    Request r;
    // Few different tokens: prompts begin alike.
    r.prompt.edit().assign(static_cast<size_t>(number(1, i % 6 == 0 ? 300 : 30)),
                           static_cast<TokenId>(number(30, share_and_swap ? 33 : 300)));
    r.max_tokens = number(1, 40);
    r.ignore_eos = true;
    r.sampling.seed = static_cast<uint64_t>(i);
    if (i % 2 == 0) r.sampling.temperature = 1.0f, r.sampling.top_p = 0.9f;
    if (i % 3 == 0) r.sampling.repetition_penalty = 1.2f;
    if (i % 5 == 0) r.sampling.logit_bias[40] = 3.0f;
    ids.push_back(engine->submit(std::move(r), [](const TokenEvent&) { exempt = true; }).value());
  }
  for (int i = 0; i < 200; ++i) engine->step();  // lists grow to their sizes
  const int64_t before = engine->stats().steps;
  allocations = 0;
  counting_allocations = true;
  for (int i = 0; i < 1100; ++i) engine->step();
  counting_allocations = false;
  EXPECT_GE(engine->stats().steps - before, 1000);
  EXPECT_EQ(allocations.load(), 0) << "in " << engine->stats().steps - before << " steps";
  EXPECT_EQ(engine->stats().prefix_hits > 0, share_and_swap);
  EXPECT_EQ(engine->stats().preemptions > 0, share_and_swap);
  EXPECT_EQ(engine->stats().host_bytes_loaded > 0, share_and_swap);
  for (const RequestId id : ids) engine->cancel(id);
}

TEST(Allocations, AThousandMixedStepsMakeNone) {
  const ModelPtr model = tiny("tiny-qwen35moe");
  for (const bool share_and_swap : {false, true}) {
    serve_without_allocating(model, 1, share_and_swap);
    serve_without_allocating(model, 2, share_and_swap);
  }
}

}  // namespace
}  // namespace quire::test
