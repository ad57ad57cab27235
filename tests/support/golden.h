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

// A file of the source tree; on another machine than the one that compiled, of the current folder.
std::string source_file(const std::string& path);

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

// A model and its golden outputs, and what Device::kReference makes of them: minutes of work, done once for all
// tests of a process that hold the same object.
class GoldenModel {
 public:
  GoldenModel(ModelPtr model, Golden golden) : model_(std::move(model)), golden_(std::move(golden)) {}

  const ModelPtr& model() const { return model_; }
  const Golden& golden() const { return golden_; }
  // log softmax of the reference's logits after every token of this prompt and its continuation that golden
  // outputs speak of; empty after the others.
  const std::vector<std::vector<double>>& reference(size_t prompt);

 private:
  ModelPtr model_;
  Golden golden_;
  std::vector<std::vector<std::vector<double>>> reference_;  // of each prompt; empty until asked for
};

// The text of each prompt encodes to its ids.
void check_encoding(const ModelPtr& model, const Golden& golden);
// All prompts of at most `longest` tokens together in one engine on Device::kReference: the greedy continuations
// token by token.
void check_greedy(const ModelPtr& model, const Golden& golden, size_t longest = SIZE_MAX);
// The reference, given the recorded tokens: each of the continuation is the likeliest, and the recorded
// log-probabilities are its own within `bound`.
void check_reference(GoldenModel& m, double bound);
// Teacher-forced on the CPU: of the steps with a gap above `clear_gap`, at most the share `lost` has another
// token on top than the recorded one; the mean of KL(reference || cpu) over all steps but that share with the
// largest stays below `mean_kl`.
struct TeacherBounds {
  double mean_kl;
  double clear_gap = 0.05;
  double lost = 0;
};
void check_teacher_forced(GoldenModel& m, const TeacherBounds& bounds);
// Tokens computed as those that an engine for few sequences generates, against the reference: mean KL below
// the bound on the golden prompts of at most `longest` tokens and their continuations.
void check_generated(GoldenModel& m, size_t longest, double bound);
// Perplexity over so many windows (0: all), spread over the text: relative errors of each window, where errors
// of two cannot make up for each other, and of all together.
struct PerplexityBounds {
  double window, all;
};
void check_perplexity(const ModelPtr& model, const Golden& golden, Device device, size_t windows,
                      const PerplexityBounds& bounds);

}  // namespace quire::test
