// Ranks that are threads: what they add up together, and how they meet.
#include "ops/all_reduce/all_reduce.h"

#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <thread>
#include <vector>

#include "ops/all_reduce/cpu_ranks.h"
#include "ops/norm/norm.h"
#include "ops/rows/rows.h"

namespace quire {
namespace {

constexpr int64_t kRows = 5, kWidth = 72;

// One rank's memory: two partial results that it takes in turns, its residual stream, and what is normalised of that.
struct Rank {
  std::vector<float> partials[2] = {std::vector<float>(kRows * kWidth), std::vector<float>(kRows* kWidth)};
  std::vector<float> x = std::vector<float>(kRows * kWidth, 0.25f);
  std::vector<bf16> h = std::vector<bf16>(kRows * kWidth);
};

Tensor matrix(std::vector<float>& v) {
  return make_tensor(v.data(), {kRows, kWidth});
}

// What rank r adds in round i at a place.
float part_of(int32_t rank, int round, int64_t at) {
  const auto mixed = static_cast<uint32_t>(at * 2654435761u + static_cast<uint32_t>(rank * 977 + round) * 40503u);
  return static_cast<float>(static_cast<int32_t>(mixed)) * 0x1p-33f;
}

void fill(std::vector<float>& partial, int32_t rank, int round) {
  for (int64_t i = 0; i < std::ssize(partial); ++i) partial[static_cast<size_t>(i)] = part_of(rank, round, i);
}

// The rounds of one rank, which is late now and then.
void run_rounds(Rank& mine, RankLink& link, const std::vector<float>& weight, int rounds, bool late) {
  ThreadPool pool(1);
  Workspace workspace;
  const OpContext ctx{.pool = pool, .workspace = workspace, .machine = {Device::kCpu}};
  std::mt19937 random(static_cast<unsigned>(link.rank()));
  for (int i = 0; i < rounds; ++i) {
    std::vector<float>& partial = mine.partials[i % 2];
    fill(partial, link.rank(), i);
    if (late && random() % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 500));
    AllReduceArgs a{.partials = {}, .count = link.of(), .link = &link, .x = matrix(mine.x)};
    a.partials[static_cast<size_t>(link.rank())] = matrix(partial);
    a.weight = make_tensor(weight.data(), {kWidth});
    a.h = make_tensor(mine.h.data(), {kRows, kWidth});
    all_reduce(ctx, a);
  }
}

// The same by one thread, with the operators that one device has.
Rank by_one(int32_t of, const std::vector<float>& weight, int rounds) {
  ThreadPool pool(1);
  Workspace workspace;
  const OpContext ctx{.pool = pool, .workspace = workspace, .machine = {Device::kCpu}};
  Rank all;
  std::vector<float> partials(static_cast<size_t>(of * kRows * kWidth));
  for (int i = 0; i < rounds; ++i) {
    for (int32_t r = 0; r < of; ++r)
      for (int64_t at = 0; at < kRows * kWidth; ++at)
        partials[static_cast<size_t>(r * kRows * kWidth + at)] = part_of(r, i, at);
    reduce_partials(ctx, {.partials = make_tensor(partials.data(), {of, kRows, kWidth}), .x = matrix(all.x)});
    add_rms_norm(ctx, {.x = matrix(all.x),
                       .add = {},
                       .weight = make_tensor(weight.data(), {kWidth}),
                       .h = make_tensor(all.h.data(), {kRows, kWidth})});
  }
  return all;
}

bool same_bits(const Rank& a, const Rank& b) {
  return std::memcmp(a.x.data(), b.x.data(), a.x.size() * 4) == 0 &&
         std::memcmp(a.h.data(), b.h.data(), a.h.size() * 2) == 0;
}

TEST(CpuRanks, HaveTheBitsOfOneDeviceWhoeverIsLate) {
  const std::vector<float> weight(kWidth, 1.5f);
  for (const int32_t of : {1, 2, 3, 8}) {
    constexpr int kRounds = 300;
    const Rank want = by_one(of, weight, kRounds);
    std::vector<Rank> ranks(static_cast<size_t>(of));
    const CpuRanks group(of);
    std::vector<std::thread> threads;
    for (int32_t r = 0; r < of; ++r)
      threads.emplace_back([&, r] { run_rounds(ranks[static_cast<size_t>(r)], group.link(r), weight, kRounds, true); });
    for (std::thread& t : threads) t.join();
    for (int32_t r = 0; r < of; ++r) EXPECT_TRUE(same_bits(ranks[static_cast<size_t>(r)], want)) << r << " of " << of;
  }
}

// A rank that waits for long takes no CPU, and goes on when the others come.
TEST(CpuRanks, WaitForThoseWhoComeMuchLater) {
  const std::vector<float> weight(kWidth, 1.0f);
  const CpuRanks group(2);
  std::vector<Rank> ranks(2);
  std::thread first([&] { run_rounds(ranks[0], group.link(0), weight, 3, false); });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  run_rounds(ranks[1], group.link(1), weight, 3, false);
  first.join();
  EXPECT_TRUE(same_bits(ranks[0], ranks[1]));
}

TEST(CpuRanks, MeetNobodyInADryPass) {
  const std::vector<float> weight(kWidth, 1.0f);
  const CpuRanks group(2);
  Rank mine;
  ThreadPool pool(1);
  pool.set_dry(true);
  Workspace workspace;
  const OpContext ctx{.pool = pool, .workspace = workspace, .machine = {Device::kCpu}};
  AllReduceArgs a{.partials = {}, .count = 2, .link = &group.link(1), .x = matrix(mine.x)};
  a.partials[1] = matrix(mine.partials[0]);
  all_reduce(ctx, a);
  EXPECT_EQ(mine.x[0], 0.25f) << "nothing is computed";
}

}  // namespace
}  // namespace quire
