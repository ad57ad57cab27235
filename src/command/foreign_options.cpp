#include "command/foreign_options.h"

#include <algorithm>
#include <string>

namespace quire::cli {
namespace {

// Commands that run a model.
constexpr std::string_view kModelCommands =
    "run serve perplexity compare eval bench bench-batch profile imatrix snapshot";
// Those of them that take positions from the file alone, that can choose the type of their KV cache, that can draft
// tokens or not, and that can have layers on several devices or not.
constexpr std::string_view kFixedRopeCommands = "compare eval bench bench-batch profile imatrix snapshot",
                           kTextCommands = kFixedRopeCommands,
                           kKvCacheCommands = "run serve perplexity compare eval bench bench-batch profile snapshot",
                           kDraftingCommands = "run serve bench bench-batch profile",
                           kOtherCommands = "perplexity compare eval imatrix snapshot",
                           kLayerSplitCommands = "run serve bench-batch profile",
                           kOneDeviceCommands = "perplexity compare eval bench imatrix snapshot";
constexpr std::string_view kLlama = "llama.cpp", kVllm = "vLLM", kSglang = "SGLang";

// What people really type. Of everything else the nearest option of the command is offered (unexpected_argument).
constexpr ForeignOption kOptions[] = {
    // ---- Where and how a model is computed ----
    {kModelCommands, kLlama,
     "-ngl --n-gpu-layers --gpu-layers -ot --override-tensor -ncmoe --n-cpu-moe -cmoe --cpu-moe",
     "a model runs on one device as a whole; --device cuda for the GPU"},
    {kLayerSplitCommands, kLlama, "-sm --split-mode -ts -mg --main-gpu",
     "--device says on what a model runs; --pipeline-parallel-size and --tensor-split put its layers on several GPUs"},
    {kOneDeviceCommands, kLlama, "-sm --split-mode -ts --tensor-split -mg --main-gpu",
     "a model runs on one device here; --device and --gpu say on which"},
    {kLayerSplitCommands, kVllm, "-tp --tensor-parallel-size -pp --enable-expert-parallel",
     "tensors are not divided among GPUs; --pipeline-parallel-size puts a model's layers on several"},
    {kOneDeviceCommands, kVllm, "-tp --tensor-parallel-size -pp --pipeline-parallel-size --enable-expert-parallel",
     "a model runs on one device as a whole here"},
    {kModelCommands, kLlama, "-fa --flash-attn", "attention always runs in pieces; leave it out"},
    {kKvCacheCommands, kLlama, "-ctk --cache-type-k -ctv --cache-type-v",
     "keys and values have one type: --kv-cache-dtype bf16 or fp8"},
    {kKvCacheCommands, kVllm, "--dtype",
     "weights are computed with in the types that the file has; leave it out (--kv-cache-dtype is for keys and "
     "values)"},
    {kModelCommands, kLlama, "--mlock --no-mmap", "weights are always mapped and never locked; leave it out"},
    {"run bench bench-batch profile", kLlama, "-ub --ubatch-size",
     "--batch-tokens says how many tokens a step computes"},
    {"serve", kLlama, "-ub --ubatch-size", "--max-num-batched-tokens says how many tokens a step computes"},
    {"serve", kVllm, "--enforce-eager", "--no-graphs launches every kernel by itself"},
    {"serve", kVllm, "-O --compilation-config --attention-backend",
     "kernels and graphs are chosen by the shapes; leave it out (--kernel forces one, to look for a difference)"},

    // ---- Which model, and what is in its file ----
    {kModelCommands, kLlama, "-hf --hf-repo -hff --hf-file",
     "a model of a hub is named in its place: -m hf:ORG/NAME[:QUANT|FILE]"},
    {kModelCommands, kLlama, "-hft --hf-token", "put the token into a file for --token-file"},
    {kModelCommands, kSglang, "--model-path", "write --model"},
    {kModelCommands, kVllm, "--download-dir", "--hub-cache is the same"},
    {kModelCommands, kVllm, "--quantization --load-format --trust-remote-code --tokenizer",
     "the model's file has all of it: weights and their types, tokenizer, template; leave it out"},
    {kFixedRopeCommands, kLlama, "--rope-scaling --rope-scale --yarn-orig-ctx",
     "positions are as the model's file says; run, serve and perplexity take it"},
    {kModelCommands, kLlama, "--rope-freq-base --rope-freq-scale",
     "it is as the model's file says; run, serve and perplexity can scale positions"},
    {kModelCommands, kLlama, "--lora", "there are no adapters; merge them into the model before quire convert"},
    {kModelCommands, kVllm, "--enable-lora --lora-modules",
     "there are no adapters; merge them into the model before quire convert"},
    {kTextCommands, kLlama, "-mm --mmproj", "it works with texts alone; run and serve take pictures"},
    {kModelCommands, kVllm, "--limit-mm-per-prompt",
     "a server's file of limits says how many pictures a request may have; leave it out"},
    {kDraftingCommands, kLlama, "-md --model-draft",
     "no second model drafts; the model's own block and the text so far do (--speculative)"},
    {kDraftingCommands, kLlama, "--draft --draft-max", "--speculative-tokens says how many tokens are drafted at most"},
    {kDraftingCommands, kVllm, "--speculative-model --num-speculative-tokens",
     "--speculative says who drafts, --speculative-tokens how many; --speculative-config takes both as JSON"},
    {kOtherCommands, kLlama, "-md --model-draft --draft --draft-max", "nothing is drafted here"},
    {kOtherCommands, kVllm, "--speculative-config", "nothing is drafted here"},

    // ---- Steps and caches of a server ----
    {"serve", kLlama, "-cb --cont-batching", "requests always share steps as they come; leave it out"},
    {"serve", kVllm, "--enable-chunked-prefill",
     "prompts are always computed in pieces beside other requests' tokens; leave it out (--max-num-batched-tokens "
     "bounds a step)"},
    {"serve", kVllm, "--scheduling-policy",
     "requests go by their `priority`, then in the order in which they came; leave it out"},
    {"serve", kVllm, "--block-size", "blocks are the same for all models; leave it out"},
    {"serve", kVllm, "--cpu-offload-gb",
     "weights stay on the device; --swap-space and --kv-offloading-size keep parts of the caches in the host's memory"},
    {"serve", kSglang, "--mem-fraction-static", "--gpu-memory-utilization is the same"},
    {"serve", kSglang, "--context-length", "--max-model-len is the same"},
    {"serve", kSglang, "--max-running-requests", "--max-num-seqs is the same"},
    {"serve", kSglang, "--chunked-prefill-size", "--max-num-batched-tokens says how many tokens a step computes"},
    {"serve", kLlama, "-cram --cache-ram", "--kv-offloading-size is what the host may keep for later prompts, in GiB"},
    {"serve", kVllm, "--kv-transfer-config --enable-sleep-mode --logits-processors", kNothingLikeIt},

    // ---- Requests and answers ----
    {"serve", kLlama,
     "--temp --temperature --top-k --top-p --min-p --repeat-penalty --presence-penalty --frequency-penalty -s --seed",
     "a request says how its tokens are chosen (temperature, top_p, seed, ...)"},
    {"run serve", kLlama, "--samplers --mirostat --dry-multiplier --xtc-probability",
     "there is no such sampler; quire help run lists those that there are"},
    {"run", kLlama, "--grammar --grammar-file -j --json-schema",
     "only a request to quire serve can bind its answer to a grammar or schema (response_format, grammar)"},
    {"serve", kLlama, "--grammar --grammar-file -j --json-schema",
     "a request brings the grammar or schema that its answer is bound to (response_format, grammar)"},
    {"serve", kVllm, "--structured-outputs-config --guided-decoding-backend",
     "a request brings the schema, choice, expression or grammar that its answer is bound to (response_format, "
     "structured_outputs); leave it out"},
    {"serve", kVllm, "--enable-auto-tool-choice",
     "calls of tools are found in answers wherever a request has tools; --tool-call-parser names another format"},
    {"serve", kVllm, "--reasoning-parser",
     "--reasoning-format auto separates what stands between <think> and </think>, and is the default"},
    {"serve", kLlama, "--reasoning-budget",
     "a request has reasoning_effort and chat_template_kwargs for it; --reasoning-format says where thoughts go"},
    {"serve", kLlama, "--chat-template-kwargs", "a request has chat_template_kwargs for it"},
    {"run serve", kLlama, "--jinja --no-jinja", "chat templates are always rendered; leave it out"},
    {"serve", kVllm, "--task --runner", "one server generates text and computes embeddings; leave it out"},
    {"serve", kLlama, "--embedding --embeddings", "one server generates text and computes embeddings; leave it out"},
    {"serve", kLlama, "--rerank --reranking", "/v1/rerank and /v1/score are always there; leave it out"},

    // ---- HTTP, logs, the process ----
    {"serve", kVllm, "--api-key",
     "a command line is seen by everybody on the machine; put keys into a file for --api-key-file"},
    {"serve", kLlama, "--metrics --slots",
     "/metrics and /props are always there, and so is what they say; leave it out"},
    {"serve", kLlama, "-to --timeout",
     "--request-timeout bounds an answer; body_timeout and write_timeout of --limits what comes and what is read"},
    {"serve", kVllm, "--disable-log-requests --enable-log-requests",
     "texts are never logged; --access-log and --no-access-log are about the line that each request has"},
    {"serve", kVllm, "--disable-log-stats",
     "figures are in /metrics; --log-level says what is logged, --trace-steps writes a line for every step"},
    {kModelCommands, kLlama, "-v --verbose --log-disable", "--log-level says what is logged, on standard error"},
    {"run", kLlama, "-cnv --conversation -i --interactive",
     "without a prompt `quire run` at a terminal is a conversation; --chat for one question"},
    {"run", kLlama, "-no-cnv --no-conversation", "--raw continues a text without the chat template"},
    {"run", kLlama, "-sys --system-prompt", "write --system"},
};

bool has_word(std::string_view words, std::string_view wanted) {
  while (!words.empty()) {
    const std::string_view word = words.substr(0, words.find(' '));
    if (word == wanted) return true;
    words.remove_prefix(std::min(words.size(), word.size() + 1));
  }
  return false;
}

}  // namespace

std::span<const ForeignOption> foreign_options() {
  return kOptions;
}

bool is_for(const ForeignOption& option, std::string_view command) {
  return has_word(option.commands, command);
}

const ForeignOption* find_foreign(std::string_view command, std::string_view name) {
  name = name.substr(0, name.find('.'));  // --compilation-config.mode
  if (name.starts_with("-O") && name.find_first_not_of("0123456789", 2) == name.npos) name = "-O";  // -O3
  const std::string positive = name.starts_with("--no-") ? "--" + std::string(name.substr(5)) : "";
  for (const std::string_view wanted : {name, std::string_view(positive)})
    for (const ForeignOption& o : foreign_options())
      if (!wanted.empty() && is_for(o, command) && has_word(o.names, wanted)) return &o;
  return nullptr;
}

}  // namespace quire::cli
