// Shared by the two forms of `quire run`: a single prompt and the conversation at the terminal.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "cli/chat/chat_prompt.h"
#include "command/options.h"
#include "core/signals.h"
#include "engine/engine.h"

namespace quire::cli {

struct RunOptions {
  ModelOptions model;
  std::string mtp;  // file with the block for multi-token prediction; empty: the model's own
  ComputeOptions compute;
  SamplingOptions sampling;
  RopeFlags rope;
  VisionFlags vision;
  std::vector<std::string> images;  // files that the message begins with
  std::string prompt, file, tokens, system, dump_layers;
  std::vector<std::string> stop;
  bool chat = false, raw = false, think = false, ignore_eos = false, special = false, json = false, quiet = false;
  bool repack = true;
  std::shared_ptr<bool> dump_failed = std::make_shared<bool>(false);  // --dump-layers could not write all
  int64_t max_tokens = -1, context = 0;                               // -1: until the answer or the context ends
  int32_t batch_tokens = 0;

  // Whether the prompt is a message for the model's chat template.
  bool templated(const LoadedModel& model) const;

  void add(Flags& flags);
  Status check() const;
  Result<EngineOptions> engine_options() const;
  LoadOptions load_options(const RopeOverride& override) const;
  Result<Request> request(std::vector<TokenId> prompt_tokens) const;
};

// What one request produced.
struct Output {
  std::vector<TokenId> prompt;
  std::vector<TokenEvent::Token> tokens;
  std::string text;
  FinishReason finish = FinishReason::kNone;
  std::optional<Error> error;
  bool interrupted = false;                 // CancelKey cancelled it
  int64_t drafts = 0, drafts_accepted = 0;  // that were verified, and that were right
  double first_token_seconds = 0.0, seconds = 0.0;

  double prompt_rate() const {
    return first_token_seconds > 0.0 ? static_cast<double>(prompt.size()) / first_token_seconds : 0.0;
  }
  // After the first token, which the prompt's steps produced.
  double generation_rate() const {
    const double s = seconds - first_token_seconds;
    return tokens.size() > 1 && s > 0.0 ? static_cast<double>(tokens.size() - 1) / s : 0.0;
  }
};

// While it lives, Ctrl-C cancels the request that is being generated, and a second one before that is done ends the
// program.
class CancelKey : public SignalNotes {
 public:
  CancelKey() : SignalNotes({SIGINT}, Second::kEnds) {}
};

// Runs one request to its end, or until CancelKey cancels it or nobody reads standard output any more.
Output generate(Engine& engine, Request request, const std::function<void(const TokenEvent&)>& each);

// How a chat with the model is sampled where the command line says nothing: as its file recommends, or else as the
// makers of its family publish, with thinking and without.
struct ChatSampling {
  SamplingDefaults plain, thinking;
  std::string source;  // who recommends it, "the file" or "the makers of qwen3"; empty: nobody
};
Result<ChatSampling> chat_sampling(const LoadedModel& model);

Status chat_at_terminal(const RunOptions& o, const std::shared_ptr<const LoadedModel>& model, EngineOptions options);

void print_status_line(const Output& out, const Engine& engine);

}  // namespace quire::cli
