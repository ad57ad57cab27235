// quire run: one prompt, or a conversation at the terminal.
#include "cli/run.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "cli/chat/terminal_text.h"
#include "cli/chat/thinking.h"
#include "cli/commands.h"
#include "cli/layer_dump.h"
#include "command/ending.h"
#include "command/options.h"
#include "command/text_input.h"
#include "core/output.h"
#include "tokenizer/chat_template.h"

namespace quire::cli {

void RunOptions::add(Flags& flags) {
  model.add(flags);
  compute.add(flags);
  flags.add("--mtp FILE", &mtp, kMtpFileHelp);
  vision.add(flags);
  sampling.add(flags);
  flags.add("-p,--prompt,PROMPT", &prompt,
            "The user's message; with --raw, or where the model has no chat template, text to continue");
  flags.add("-f,--file FILE", &file, "Read the prompt from a file; - for standard input");
  flags.add("--image FILE", &images, "A picture in front of the message: PNG, JPEG, WebP or GIF (repeatable)");
  flags.add("--tokens 1,2,3", &tokens,
            "Token ids to continue, instead of a text; -: from standard input, as `quire tokenize` prints them");
  flags.add("--chat", &chat, "Apply the model's chat template, which is the default where there is one");
  flags.add("--raw", &raw, "Do not: continue the prompt as a text");
  flags.add("--system", &system, "System message; implies --chat").may_be_empty();
  flags.add("--think", &think, "Let the template open a thinking section, if it has one");
  flags.add("-n,--max-tokens", &max_tokens, at_least(1).or_else(-1, "until the end"),
            "Tokens to generate at most; -1: until the answer or the context ends");
  rope.add(flags);
  flags.add("-c,--context", &context, "Longest sequence, prompt and answer; 0: what the model was trained for");
  flags.add("--batch-tokens", &batch_tokens,
            "Prompt tokens per step; 0: 512, on a GPU up to 2048. The output does not depend on it");
  flags.add("--stop", &stop, "Text that ends the generation (repeatable)");
  flags.add("!--no-repack", &repack,
            "Save memory: generate from the weights as the file has them, slower. The output is the same");
  flags.add("--ignore-eos", &ignore_eos, "Do not stop at end-of-generation tokens");
  flags.add("--special", &special, "Print control tokens as their text");
  flags.add("--json", &json, "Print one JSON object instead of streaming text");
  flags.add("-q,--quiet", &quiet, "No status line, and in a conversation no banner");
  flags.add("--dump-layers DIR", &dump_layers, "Write every step's intermediates as .npy files into this folder");
}

bool RunOptions::templated(const LoadedModel& m) const {
  if (!tokens.empty() || raw) return false;
  return chat || !system.empty() || (m.tokenizer && !m.tokenizer->chat_template().empty());
}

Status RunOptions::check() const {
  if (!prompt.empty() + !file.empty() + !tokens.empty() > 1)
    return request_error("give one of --prompt, --file and --tokens");
  if (raw && (chat || !system.empty()))
    return request_error("--raw leaves the chat template out, --chat and --system need it");
  if (!tokens.empty() && (chat || !system.empty()))
    return request_error("--tokens are continued as they are; --chat and --system take a text");
  if (!images.empty() && (raw || !tokens.empty()))
    return request_error("--image needs the chat template, which --raw and --tokens leave out");
  return {};
}

Result<EngineOptions> RunOptions::engine_options() const {
  EngineOptions e;
  QUIRE_CHECKED(model.apply(e));
  QUIRE_CHECKED(compute.apply(e));
  e.context = context;
  e.max_sequences = 1;
  e.max_batch_tokens = batch_tokens;
  e.repack = repack;
  if (!dump_layers.empty()) {
    QUIRE_TRY(e.probe, make_layer_dump(dump_layers, dump_failed));
  }
  return e;
}

LoadOptions RunOptions::load_options(const RopeOverride& override) const {
  return {.mtp = mtp, .rope = override, .mmproj = vision.mmproj, .vision = vision.vision, .pictures = vision.pictures};
}

Result<Request> RunOptions::request(std::vector<TokenId> prompt_tokens) const {
  Request r;
  r.prompt = std::move(prompt_tokens);
  r.max_tokens = max_tokens == -1 ? std::numeric_limits<int64_t>::max() : max_tokens;
  QUIRE_TRY(r.sampling, sampling.parsed());
  r.stop = stop;
  r.ignore_eos = ignore_eos;
  r.render_special = special;
  return r;
}

Output generate(Engine& engine, Request request, const std::function<void(const TokenEvent&)>& each) {
  using Clock = std::chrono::steady_clock;
  Output out;
  out.prompt = request.prompt.vector();
  const auto start = Clock::now();
  const auto since = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  const auto listener = [&](const TokenEvent& e) {
    if (const auto* const token = e.as<TokenEvent::Token>()) {
      if (out.tokens.empty()) out.first_token_seconds = since();
      out.tokens.push_back(*token);
      out.text += token->text;
    }
    if (const auto* const end = e.as<TokenEvent::Ended>()) {
      out.finish = end->finish;
      out.drafts = end->drafts;
      out.drafts_accepted = end->drafts_accepted;
      out.error = end->error;
    }
    each(e);
  };
  Result<RequestId> id = engine.submit(std::move(request), listener);
  if (!id.ok()) {
    out.finish = FinishReason::kError;
    out.error = id.take_error();
    return out;
  }
  while (engine.busy()) {
    if (CancelKey::take() != 0) {
      out.interrupted = true;
      engine.cancel(*id);
    }
    if (output_is_lost()) engine.cancel(*id);  // nobody reads what would come
    engine.step();
  }
  out.seconds = since();
  return out;
}

namespace {

// What a chat template's model thought stands apart from its answer.
void add_text(const Output& out, const Engine& engine, bool chat, nlohmann::ordered_json& j) {
  if (!chat) {
    j["text"] = out.text;
    return;
  }
  SplitAnswer parts = split_thinking(engine.model().tokenizer->decode(out.prompt, true), out.text);
  if (!parts.thinking.empty()) j["thinking"] = std::move(parts.thinking);
  j["text"] = std::move(parts.answer);
}

nlohmann::ordered_json as_json(const Output& out, const Engine& engine, bool logprobs, bool chat) {
  nlohmann::ordered_json j;
  j["prompt_tokens"] = out.prompt.size();
  j["prompt_token_ids"] = out.prompt;
  std::vector<TokenId> tokens;
  for (const TokenEvent::Token& t : out.tokens) tokens.push_back(t.id);
  j["tokens"] = tokens;
  add_text(out, engine, chat, j);
  j["finish_reason"] = finish_reason_name(out.finish);
  j["fingerprint"] = engine.fingerprint();
  if (logprobs) {
    auto& list = j["logprobs"] = nlohmann::ordered_json::array();
    for (const TokenEvent::Token& t : out.tokens) {
      nlohmann::ordered_json top = nlohmann::ordered_json::array();
      for (const TokenLogprob& o : t.top) top.push_back({{"token", o.token}, {"logprob", o.logprob}});
      list.push_back({{"token", t.id}, {"logprob", t.logprob}, {"top", top}});
    }
  }
  const int64_t drafts = out.drafts, accepted = out.drafts_accepted;
  j["speculation"] = {{"drafts", drafts}, {"accepted", accepted}};
  const MemoryUse m = engine.memory();
  if (!engine.plan().kernels.forced.empty()) {
    auto& forced = j["forced_kernels"] = nlohmann::ordered_json::array();
    for (const ForcedCount& c : engine.forced_kernels())
      forced.push_back({{"operator", c.op}, {"kernel", c.kernel}, {"ran", c.ran}, {"replaced", c.replaced}});
  }
  j["timings"] = {{"load_seconds", engine.load_seconds()},
                  {"first_token_seconds", out.first_token_seconds},
                  {"prompt_tokens_per_second", out.prompt_rate()},
                  {"generation_seconds", out.seconds - out.first_token_seconds},
                  {"generated_tokens_per_second", out.generation_rate()}};
  j["memory"] = {{"mapped", m.mapped},
                 {"converted", m.converted},
                 {"repacked", m.repacked},
                 {"cache", m.kv_and_state},
                 {"workspace", m.workspace}};
  return j;
}

// At most what a context's tokens can be: as text, whose letters and accents may be put together before, so that a
// token stands for several times its bytes, or as lines of `quire tokenize`.
Result<std::string> read_prompt(const RunOptions& o, const LoadedModel& model, const std::string& path) {
  if (!model.tokenizer) return read_text(path);
  size_t longest = 1;
  for (TokenId t = 0; t < model.tokenizer->size(); ++t)
    longest = std::max(longest, model.tokenizer->token_bytes(t, true).size());
  const int64_t context = o.context > 0 ? o.context : model.model->config().context_length;
  const int64_t of_token = 4 * (static_cast<int64_t>(longest) + 16);
  return read_text(path, std::min(context, kMaxTextBytes / of_token) * of_token,
                   fmt::format("no text so long fits a context of {} tokens", context));
}

Result<ChatPrompt> prompt_of(const RunOptions& o, const LoadedModel& model) {
  ChatPrompt prompt;
  if (o.tokens == "-") {
    QUIRE_TRY(const std::string list, read_prompt(o, model, "-"));
    QUIRE_TRY(prompt.tokens, parse_token_list(list));
    return prompt;
  }
  if (!o.tokens.empty()) {
    QUIRE_TRY(prompt.tokens, parse_tokens(o.tokens));
    return prompt;
  }
  std::string text = o.prompt;
  if (o.prompt.empty()) {
    QUIRE_TRY(text, read_prompt(o, model, o.file.empty() ? "-" : o.file));
  }
  if (!model.tokenizer)
    return request_error("{}: this file has no tokenizer; give the prompt as --tokens", o.model.model);
  if (o.templated(model)) {
    if (text.empty()) return request_error("the prompt is empty");
    nlohmann::ordered_json messages = nlohmann::ordered_json::array();
    if (!o.system.empty()) messages.push_back({{"role", "system"}, {"content", o.system}});
    QUIRE_TRY(const std::vector<server::PicturePtr> pictures, read_pictures(o.images));
    messages.push_back({{"role", "user"}, {"content", content_of(pictures, text)}});
    return encode_chat(model, messages, o.think);
  }
  if (!o.images.empty()) return request_error("--image: this model file has no chat template");
  prompt.tokens = model.tokenizer->encode(text, {.add_special = true, .parse_special = true});
  return prompt;
}

// After Ctrl-C the step under way is waited for, but not longer than a person would.
class Deadline {
 public:
  explicit Deadline(const CancelKey& key) : key_(key), thread_([this] { watch(); }) {}
  ~Deadline() {
    {
      const std::lock_guard lock(mutex_);
      met_ = true;
    }
    changed_.notify_all();
    key_.wake();
    thread_.join();
  }
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;

 private:
  static constexpr auto kPatience = std::chrono::milliseconds(500);

  void watch() {
    while (!met_ && CancelKey::count() == 0) key_.wait();
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, kPatience, [this] { return met_.load(); })) end_by_signal(SIGINT);
  }

  const CancelKey& key_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::atomic<bool> met_{false};
  std::thread thread_;
};

// Texts that are continued are sampled as the file recommends, or greedily. So is what is asked for greedily: a penalty
// would change it.
Status take_sampling(RunOptions& o, const LoadedModel& model, bool converse) {
  QUIRE_TRY(const SamplingDefaults recommended, recommended_sampling(model.file));
  const bool greedy = o.sampling.given("temperature") && o.sampling.params.temperature == 0.0f;
  if (greedy || recommended.any() || !(converse || o.templated(model))) {
    o.sampling.take_defaults(recommended);
    return {};
  }
  QUIRE_TRY(const ChatSampling chat, chat_sampling(model));
  o.sampling.take_defaults(o.think ? chat.thinking : chat.plain);
  return {};
}

Status run(RunOptions& o) {
  QUIRE_CHECKED(o.check());
  QUIRE_TRY(EngineOptions options, o.engine_options());
  QUIRE_TRY(const RopeOverride rope, o.rope.parsed());
  QUIRE_TRY(const std::shared_ptr<const LoadedModel> model, load_model(o.model.model, o.load_options(rope)));
  const bool converse = o.prompt.empty() && o.file.empty() && o.tokens.empty() && !o.json && isatty(0) != 0;
  QUIRE_CHECKED(take_sampling(o, *model, converse).context(o.model.model));
  if (converse) return chat_at_terminal(o, model, std::move(options));
  QUIRE_TRY(ChatPrompt prompt, prompt_of(o, *model));
  QUIRE_TRY(Request request, o.request(std::move(prompt.tokens)));
  QUIRE_TRY(request.images, PictureDecoder(*model).decode(prompt.pictures));
  const bool logprobs = request.sampling.logprobs >= 0;
  QUIRE_TRY(const std::unique_ptr<Engine> engine, Engine::create(model, std::move(options)));
  const CancelKey cancel_key;
  const Deadline deadline(cancel_key);
  TerminalText text(o.templated(*model));
  const Output out = generate(*engine, std::move(request), [&](const TokenEvent& e) {
    if (!o.json) text.write(e.text());
  });
  if (out.error) return *out.error;
  if (o.json) {
    // Invalid UTF-8 cannot occur: the detokeniser emits whole characters only.
    print_out("{}\n", as_json(out, *engine, logprobs, o.templated(*model)).dump());
  } else {
    write_out("\n");
    QUIRE_CHECKED(flush_output());
    if (!o.quiet) print_status_line(out, *engine);
  }
  QUIRE_CHECKED(flush_output());
  if (out.interrupted) end_by_signal(SIGINT);
  if (*o.dump_failed) return request_error("--dump-layers {}: not all was written", o.dump_layers);
  return {};
}

}  // namespace

Result<ChatSampling> chat_sampling(const LoadedModel& model) {
  QUIRE_TRY(const SamplingDefaults recommended, recommended_sampling(model.file));
  if (recommended.any()) return ChatSampling{recommended, recommended, "the file"};
  const std::string& family = model.model->config().architecture;
  ChatSampling chat{family_sampling(family, false), family_sampling(family, true), ""};
  if (chat.plain.any()) chat.source = "the makers of " + family;
  return chat;
}

void print_status_line(const Output& out, const Engine& engine) {
  const MemoryUse m = engine.memory();
  const auto mib = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  tell_line(fmt::format(
      "[{} | load {:.2f} s | prompt {} tokens, {:.0f} tokens/s | generated {} tokens, {:.1f} "
      "tokens/s | memory "
      "{:.0f} MiB mapped from the file + {:.0f} MiB (repacked weights {:.0f}, cache {:.0f}, "
      "workspace {:.0f}, "
      "converted {:.1f})]",
      finish_reason_name(out.finish), engine.load_seconds(), out.prompt.size(), out.prompt_rate(), out.tokens.size(),
      out.generation_rate(), mib(m.mapped), mib(m.repacked + m.kv_and_state + m.workspace + m.converted),
      mib(m.repacked), mib(m.kv_and_state), mib(m.workspace), mib(m.converted)));
  report_forced(engine.forced_kernels());
}

Action add_run(Flags& flags) {
  auto o = std::make_shared<RunOptions>();
  o->add(flags);
  flags.footer("Without a prompt: a conversation at the terminal, or the prompt from standard input.");
  return [o] { return run(*o); };
}

}  // namespace quire::cli
