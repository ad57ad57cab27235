// Golden outputs (docs/testing.md), and the checks that every model goes through.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "eval/scorer.h"

namespace quire::test {

struct GoldenTop {
  TokenId token = -1;
  double logprob = 0;
};

struct GoldenPrompt {
  std::string name;
  std::optional<std::string> text;  // absent where the prompt was made of tokens
  std::vector<TokenId> ids, continuation;
  std::vector<double> gaps;  // of each step: log-probability of the best token minus that of the runner-up
  // After token `position` of the prompt: the ten likeliest.
  struct Spread {
    int64_t position;
    std::vector<GoldenTop> top;
  };
  std::vector<Spread> spread;  // the last position among them

  // Prompt and continuation: what is fed for teacher-forced steps.
  std::vector<TokenId> all() const;
};

// Negative log-likelihoods of consecutive windows.
struct GoldenPerplexity {
  std::vector<TokenId> ids;  // empty: those of ppl.txt
  int64_t window = 0;
  std::vector<double> window_nll;
};

struct Golden {
  std::vector<GoldenPrompt> prompts;
  GoldenPerplexity perplexity;
  double bf16_mean_kl = 0;  // how far transformers itself moves in bf16; tiny models only
};

// Files of tests/data/golden; die with a message if they cannot be read. `ppl_path` for models whose
// perplexity has a file of its own.
Golden load_golden(const std::string& path, const std::string& ppl_path = {});
std::string golden_folder();
std::string read_whole_file(const std::string& path);

using ModelPtr = std::shared_ptr<const LoadedModel>;
ModelPtr load_or_die(const std::string& path);

// The text of each prompt encodes to its ids.
void check_encoding(const ModelPtr& model, const Golden& golden);
// All prompts together in one engine: the greedy continuations token by token.
void check_greedy(const ModelPtr& model, const Golden& golden, Device device);
// The recorded log-probabilities within `bound`.
void check_top(const ModelPtr& model, const Golden& golden, Device device, double bound);
// Teacher-forced on the CPU: of the steps with a gap above `clear_gap`, at most the share `lost` has another
// token on top than the recorded one; the mean of KL(reference || cpu) over all steps but that share with the
// largest stays below `mean_kl`.
struct TeacherBounds {
  double mean_kl;
  double clear_gap = 0.05;
  double lost = 0;
};
void check_teacher_forced(const ModelPtr& model, const Golden& golden, const TeacherBounds& bounds);
// Tokens computed as those that an engine for few sequences generates, against the reference: mean KL below
// the bound on the golden prompts and continuations.
void check_generated(const ModelPtr& model, const Golden& golden, double bound);
// Perplexity over the first `windows` windows (0: all) within the relative bound.
void check_perplexity(const ModelPtr& model, const Golden& golden, Device device, size_t windows,
                      double bound);

}  // namespace quire::test
