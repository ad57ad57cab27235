#include "ops/conformance/gpu.h"
#include "ops/sampling/check.h"

namespace quire::conformance {
namespace {

constexpr OnGpu<UpdateHistoryArgs> kOnGpu{[](Operands& o, UpdateHistoryArgs& a) {
                                            o.array(a.tokens, a.token_count);
                                            o.array(a.ranges, a.range_count);
                                            place_history(o, a.history);
                                          },
                                          update_history};

// Sequences whose tokens arrive in ranges over several calls, at shuffled histories of which some are used
// again.
struct Story {
  struct Call {
    std::vector<int32_t> tokens;
    std::vector<HistoryUpdate> ranges;
  };
  std::vector<Call> calls;
  std::vector<SeenTokens> want;  // of every history in the end
};

// One range for some of the histories: a prompt's chunk, output, or both; sometimes beginning anew.
Story::Call random_call(Rng& rng, int vocab, int longest, std::vector<SeenTokens>& want) {
  Story::Call call;
  const auto token = [&] { return call.tokens.emplace_back(rng.integer(0, vocab - 1)); };
  for (const int32_t h : rng.permutation(static_cast<int>(want.size()))) {
    if (rng.integer(0, 3) == 0) continue;
    if (rng.integer(0, 4) == 0) call.ranges.push_back({.history = -1, .begin = 1 << 20, .count = 7, .reset = 1});
    SeenTokens& seen = want[static_cast<size_t>(h)];
    HistoryUpdate range{.history = h};
    if (rng.integer(0, 5) == 0) range.reset = 1, seen = {};
    for (int i = rng.integer(0, 3); i > 0; --i) token();  // tokens between the ranges belong to nobody
    range.begin = static_cast<int32_t>(call.tokens.size());
    range.count = rng.integer(0, longest);
    range.prompt = rng.integer(0, 2) == 0 ? rng.integer(0, range.count + 2) : 0;
    for (int32_t i = 0; i < range.count; ++i) {
      if (rng.integer(0, 30) == 0) {
        call.tokens.push_back(rng.integer(0, 1) == 0 ? -1 - i : vocab + i);  // not a token: skipped
        continue;
      }
      (i < range.prompt ? seen.prompt : seen.output).push_back(token());
    }
    call.ranges.push_back(range);
  }
  return call;
}

Story random_story(Rng& rng, int histories, int vocab, int longest, int calls) {
  Story story;
  story.want.resize(static_cast<size_t>(histories));
  for (int i = 0; i < calls; ++i) story.calls.push_back(random_call(rng, vocab, longest, story.want));
  return story;
}

}  // namespace

void update_history_conformance(Suite& s) {
  struct Case {
    const char* name;
    int histories, vocab, longest, calls;
  };
  constexpr Case kCases[] = {{"one token", 1, 1, 3, 5},
                             {"one history", 1, 50, 20, 20},
                             {"few tokens", 5, 7, 40, 30},
                             {"many histories", 64, 300, 30, 20},
                             {"long prompts", 3, 5000, 9000, 4},
                             {"large vocabulary", 4, 248320, 600, 6},
                             {"more histories than calls", 40, 9, 2, 2},
                             {"nothing", 4, 10, 5, 0}};
  for (const Case& c : kCases) {
    Rng rng = s.rng_for_case(c.name);
    const Story story = random_story(rng, c.histories, c.vocab, c.longest, c.calls);
    for (const auto& k : s.kernels(kUpdateHistoryOp.kernels, kOnGpu)) {
      if (!s.wants(k.name, c.name)) continue;
      const HistoryBuffers history(c.histories, c.vocab, c.vocab);
      int threads = 1;
      for (const Story::Call& call : story.calls)
        k.launch(s.context(Device::kCpu, 1 + threads++ % 4), {.tokens = call.tokens.data(),
                                                              .token_count = std::ssize(call.tokens),
                                                              .ranges = call.ranges.data(),
                                                              .range_count = static_cast<int32_t>(call.ranges.size()),
                                                              .history = history.view()});
      std::string wrong;
      for (int32_t h = 0; h < c.histories && wrong.empty(); ++h)
        wrong = wrong_history(history.view(), h, story.want[static_cast<size_t>(h)]);
      s.expect(k.name, c.name, wrong.empty(), wrong);
      s.expect_guards(k.name, c.name, {&history.counts, &history.seen, &history.seen_count});
    }
  }
}

}  // namespace quire::conformance
