#include "cli/foreign_options.h"

#include <algorithm>
#include <string>
#include <vector>

namespace quire::cli {
namespace {

// Commands that run a model.
constexpr std::string_view kModelCommands =
    "run serve perplexity compare eval bench bench-batch profile imatrix snapshot";
// Those of them that take positions from the file alone.
constexpr std::string_view kFixedRopeCommands = "compare eval bench bench-batch profile imatrix snapshot";
// Those of them that can draft tokens, and the others.
constexpr std::string_view kDraftingCommands = "run serve bench bench-batch profile",
                           kOtherModelCommands = "perplexity compare eval imatrix snapshot";

// ---- Drafts ----

constexpr char kLlamaDrafts[] =
    "-md --model-draft --draft-min --draft-p-min -cd --ctx-size-draft -devd --device-draft -ngld --gpu-layers-draft "
    "--n-gpu-layers-draft -hfd -hfrd --hf-repo-draft -ctkd -ctvd --cache-type-k-draft --cache-type-v-draft "
    "--spec-draft-type-k --spec-draft-type-v --spec-type --spec-replace -lcs --lookup-cache-static -lcd "
    "--lookup-cache-dynamic -td --threads-draft -tbd --threads-batch-draft";
constexpr char kVllmDrafts[] =
    "-sc --speculative-model --num-speculative-tokens --spec-method --spec-model --spec-tokens "
    "--num-lookahead-slots --ngram-prompt-lookup-max --ngram-prompt-lookup-min";
constexpr std::string_view kWithKvCacheType = "run serve perplexity compare eval bench bench-batch profile snapshot";
constexpr std::string_view kLlama = "llama.cpp", kVllm = "vLLM";

// ---- Where and how a model is computed ----

const ForeignOption kComputing[] = {
    {kModelCommands, kLlama,
     "-ngl --n-gpu-layers --gpu-layers -dev -nkvo --no-kv-offload -kvo --kv-offload -cmoe --cpu-moe -ncmoe "
     "--n-cpu-moe -ncffn --n-cpu-ffn -ot --override-tensor --op-offload --no-op-offload --no-host "
     "--moe-cache-mib",
     "a model runs on one device as a whole; --device cuda for the GPU"},
    {kModelCommands, kLlama, "-sm --split-mode -ts --tensor-split -mg --main-gpu --rpc",
     "a model runs on one device; --device and --gpu say on which"},
    {kModelCommands, kVllm,
     "-tp --tensor-parallel-size -pp --pipeline-parallel-size -dp --data-parallel-size -dpn "
     "--data-parallel-rank -dpr --data-parallel-start-rank -dpl --data-parallel-size-local -dpa "
     "--data-parallel-address -dpp --data-parallel-rpc-port -dpb --data-parallel-backend -dph "
     "--data-parallel-hybrid-lb -dpe --data-parallel-external-lb -dcp --decode-context-parallel-size -pcp "
     "--prefill-context-parallel-size --dcp-kv-cache-interleave-size --cp-kv-cache-interleave-size --nnodes "
     "--node-rank --master-addr --master-port --headless --distributed-executor-backend "
     "--distributed-timeout-seconds -ep --enable-expert-parallel --enable-ep-weight-filter --all2all-backend "
     "--enable-dbo --dbo-decode-token-threshold --dbo-prefill-token-threshold "
     "--disable-nccl-for-dp-synchronization --enable-eplb --eplb-config --num-redundant-experts "
     "--eplb-window-size --eplb-step-interval --eplb-log-balancedness --expert-placement-strategy "
     "--max-parallel-loading-workers --ray-workers-use-nsight --worker-cls --worker-extension-cls "
     "--disable-custom-all-reduce --numa-bind --numa-bind-nodes --numa-bind-cpus",
     "a model runs on one device as a whole; for several GPUs, start a server for each behind a router"},
    {kModelCommands, kLlama, "-fa --flash-attn", "attention always runs in pieces; leave it out"},
    {kWithKvCacheType, kLlama, "-ctk -ctv --cache-type-k --cache-type-v",
     "keys and values have one type: --kv-cache-dtype bf16 or fp8"},
    {kWithKvCacheType, kVllm, "--dtype",
     "weights are computed with in the types that the file has; leave it out (--kv-cache-dtype is for keys "
     "and values)"},
    {kWithKvCacheType, kVllm, "--calculate-kv-scales --kv-cache-dtype-skip-layers",
     "with --kv-cache-dtype fp8 every token's head has a scale of its own; leave it out"},
    {kModelCommands, kLlama, "-tb --threads-batch", "--threads counts for prompts and for generation"},
    {kModelCommands, kLlama,
     "-C --cpu-mask -Cr --cpu-range --cpu-strict --prio --poll -Cb --cpu-mask-batch -Crb --cpu-range-batch "
     "--cpu-strict-batch --prio-batch --poll-batch --numa",
     "use taskset, numactl or nice around the program; the threads keep to the CPUs that it may use"},
    {kModelCommands, kLlama, "--mlock --no-mmap --mmap -dio --direct-io -lm --load-mode -lzm --lazy-mode",
     "weights are always mapped and never locked; leave it out"},
    {kModelCommands, kLlama,
     "-nr --repack --warmup --no-warmup --check-tensors --perf --no-perf -dt --defrag-thold --swa-full -fit "
     "--fit -fitt --fit-target -fitc --fit-ctx -bs --backend-sampling",
     "the program decides this by itself; leave it out"},
    {"run bench bench-batch profile", kLlama, "-ub --ubatch-size",
     "--batch-tokens says how many tokens a step computes"},
    {"serve", kLlama, "-ub --ubatch-size", "--max-num-batched-tokens says how many tokens a step computes"},
};

// ---- Which model, and what is in its file ----

const ForeignOption kModelFile[] = {
    {kModelCommands, kLlama, "-hf -hfr --hf-repo -hff --hf-file",
     "a model of a hub is named in its place: -m hf:ORG/NAME[:QUANT|FILE]"},
    {kModelCommands, kLlama, "-hft --hf-token", "put the token into a file for --token-file"},
    {kModelCommands, kLlama, "-mu --model-url -dr --docker-repo",
     "models are fetched from a hub by name: -m hf:ORG/NAME[:QUANT|FILE], and --hub says which"},
    {kModelCommands, kLlama, "-cl --cache-list", "quire list prints what was fetched"},
    {kModelCommands, kVllm, "--download-dir", "--hub-cache is the same"},
    {kModelCommands, kVllm, "--code-revision --tokenizer-revision --hf-config-path",
     "a model's files are of one revision: --revision"},
    {kModelCommands, kVllm,
     "--quantization --load-format --config-format --model-impl --model-loader-extra-config "
     "--safetensors-load-strategy --safetensors-prefetch-block-size --ignore-patterns --use-tqdm-on-load "
     "--pt-load-map-location --trust-remote-code --tokenizer --tokenizer-mode --skip-tokenizer-init "
     "--hf-overrides --rope-theta --override-attention-dtype --quantization-config "
     "--disable-sliding-window --allow-deprecated-quantization",
     "the GGUF file has all of it: weights and their types, tokenizer, template, RoPE; leave it out"},
    {kFixedRopeCommands, kLlama,
     "--rope-scaling --rope-scale --yarn-orig-ctx --yarn-ext-factor --yarn-attn-factor --yarn-beta-slow "
     "--yarn-beta-fast",
     "positions are as the model's file says; run, serve and perplexity take it"},
    {kModelCommands, kLlama, "--rope-freq-base --rope-freq-scale --override-kv",
     "it is as the model's file says; run, serve and perplexity can scale positions"},
    {"serve", kVllm, "-q", "weights are used in the types that the GGUF file has; leave it out"},
    {"serve", kVllm, "--task --runner --convert --is-embedding",
     "one server generates text and computes embeddings; leave it out"},
    {"serve", kLlama, "--embedding --embeddings", "one server generates text and computes embeddings; leave it out"},
    {kModelCommands, kLlama,
     "--lora --lora-scaled --lora-init-without-apply --control-vector --control-vector-scaled "
     "--control-vector-layer-range",
     "there are no adapters; merge them into the model before quire convert"},
    {kModelCommands, kVllm,
     "--enable-lora --lora-modules --max-loras --max-lora-rank --lora-dtype --lora-extra-vocab-size "
     "--max-cpu-loras --fully-sharded-loras --default-mm-loras --enable-lora-bias --lora-target-modules "
     "--enable-tower-connector-lora --specialize-active-lora --long-lora-scaling-factors "
     "--enable-prompt-adapter --prompt-adapters --max-prompt-adapters --max-prompt-adapter-token",
     "there are no adapters; merge them into the model before quire convert"},
    {kModelCommands, kLlama,
     "-mm --mmproj -mmu --mmproj-url --mmproj-auto --mmproj-offload -mmdev --mmproj-device --image --audio "
     "--image-min-tokens --image-max-tokens --mtmd-batch-max-tokens --video-fps --video-timestamp-interval "
     "--video-ffmpeg-dir --media-path",
     "models read and write text only"},
    {kModelCommands, kVllm,
     "--limit-mm-per-prompt --enable-mm-embeds --interleave-mm-strings --media-io-kwargs "
     "--mm-processor-kwargs --disable-mm-preprocessor-cache --mm-processor-cache-gb "
     "--mm-processor-cache-type --mm-shm-cache-max-object-size-mb --mm-encoder-tp-mode "
     "--mm-encoder-attn-backend --mm-encoder-only --skip-mm-profiling --video-pruning-rate "
     "--allowed-local-media-path --allowed-media-domains --disable-chunked-mm-input --language-model-only "
     "--enable-multimodal-encoder-data-parallel",
     "models read and write text only; leave it out"},
    {kDraftingCommands, kLlama, "--draft --draft-n --draft-max",
     "--speculative-tokens says how many tokens are drafted at most"},
    {kDraftingCommands, kLlama, kLlamaDrafts,
     "no second model drafts; the model's own block and the text so far do (--speculative)"},
    {kDraftingCommands, kVllm, kVllmDrafts,
     "--speculative says who drafts, --speculative-tokens how many; --speculative-config takes both as JSON"},
    {kOtherModelCommands, kLlama, "--draft --draft-n --draft-max", "nothing is drafted here"},
    {kOtherModelCommands, kLlama, kLlamaDrafts, "nothing is drafted here"},
    {kOtherModelCommands, kVllm, kVllmDrafts, "nothing is drafted here"},
    {kOtherModelCommands, kVllm, "--speculative-config", "nothing is drafted here"},
};

// ---- Steps and caches of a server ----

const ForeignOption kScheduling[] = {
    {"serve", kLlama, "-cb --cont-batching -nocb --no-cont-batching",
     "requests always share steps as they come; leave it out"},
    {"serve", kVllm,
     "--enable-chunked-prefill --max-num-partial-prefills --max-long-partial-prefills "
     "--long-prefill-token-threshold --max-num-scheduled-tokens --scheduler-reserve-full-isl",
     "prompts are always computed in pieces beside other requests' tokens; leave it out "
     "(--max-num-batched-tokens "
     "bounds a step)"},
    {"serve", kVllm,
     "--scheduling-policy --scheduler-cls --scheduler-delay-factor --preemption-mode --use-v2-block-manager "
     "--prefill-schedule-interval",
     "requests go by their `priority`, then in the order in which they came; leave it out"},
    {"serve", kVllm, "--async-scheduling --num-scheduler-steps --multi-step-stream-outputs --stream-interval",
     "steps overlap as --depth says, and every token is sent when it is there; leave it out"},
    {"serve", kVllm,
     "--block-size --prefix-caching-hash-algo --mamba-block-size --mamba-cache-mode --mamba-cache-dtype "
     "--mamba-ssm-cache-dtype --mamba-backend --disable-hybrid-kv-cache-manager --kv-sharing-fast-prefill "
     "--disable-cascade-attn",
     "blocks, states and their sharing are the same for all models; leave it out"},
    {"serve", kVllm, "--num-gpu-blocks-override --kv-cache-memory-bytes", "--kv-tokens says how large the KV cache is"},
    {"serve", kVllm,
     "--cpu-offload-gb --cpu-offload-params --offload-backend --offload-group-size --offload-num-in-group "
     "--offload-prefetch-step --offload-params --kv-offloading-backend",
     "weights stay on the device; --swap-space and --kv-offloading-size keep parts of the caches in the "
     "host's memory"},
    {"serve", kVllm, "--enforce-eager", "--no-graphs launches every kernel by itself"},
    {"serve", kVllm,
     "-O --optimization-level -cc --compilation-config --max-seq-len-to-capture --cuda-graph-sizes "
     "--cudagraph-capture-sizes --max-cudagraph-capture-size --attention-backend -ac --attention-config "
     "--moe-backend --linear-backend --gdn-prefill-backend --kernel-config --ir-op-priority "
     "--enable-flashinfer-autotune --additional-config --performance-mode --use-fp64-gumbel",
     "kernels and graphs are chosen by the shapes; leave it out (--kernel forces one, to look for a "
     "difference)"},
    {"serve", kVllm,
     "--kv-transfer-config --kv-events-config --ec-transfer-config --weight-transfer-config "
     "--enable-sleep-mode --io-processor-plugin --logits-processors --logits-processor-pattern "
     "--enable-prompt-embeds --tokens-only --enable-return-routed-experts --grpc --tool-server",
     "there is nothing like it here"},
    {"serve", kVllm, "--pooler-config --override-pooler-config", "--pooling says how an embedding is made"},
    {"serve", kLlama, "--embd-normalize", "embeddings always have length 1; leave it out"},
    {"serve", kLlama,
     "--cache-prompt --no-cache-prompt --cache-idle-slots --cache-reuse -kvu --kv-unified -no-kvu "
     "--no-kv-unified --kv-unified-per-slot -sps --slot-prompt-similarity -ctxcp --ctx-checkpoints "
     "--swa-checkpoints -cms --checkpoint-min-step",
     "all requests share one cache, and prompts that begin alike are found; leave it out "
     "(--no-enable-prefix-caching "
     "switches that off)"},
    {"serve", kLlama, "-cram --cache-ram", "--kv-offloading-size is what the host may keep for later prompts, in GiB"},
    {"serve", kLlama, "--slot-save-path", "--prefix-cache-file keeps the prefix cache while the server is down"},
    {"run serve", kLlama, "--context-shift --no-context-shift --keep",
     "an answer ends where the context ends; nothing is dropped from its beginning"},
};

// ---- Requests and answers ----

const ForeignOption kRequests[] = {
    {"serve", kLlama,
     "--temp --temperature --top-k --top-p --min-p --typical --typical-p --repeat-penalty --presence-penalty "
     "--frequency-penalty -s --seed -l --logit-bias --ignore-eos -r --reverse-prompt",
     "a request says how its tokens are chosen and where it ends (temperature, top_p, seed, stop, ...)"},
    {"serve", kVllm, "--override-generation-config --logprobs-mode",
     "a request says how its tokens are chosen (temperature, top_p, ...)"},
    {"run serve", kLlama,
     "--samplers --sampler-seq --sampling-seq --mirostat --mirostat-lr --mirostat-ent --dry-multiplier "
     "--dry-base --dry-allowed-length --dry-penalty-last-n --dry-sequence-breaker --xtc-probability "
     "--xtc-threshold --top-nsigma --top-n-sigma --dynatemp-range --dynatemp-exp --repeat-last-n "
     "--adaptive-target --adaptive-decay",
     "there is no such sampler; quire help run lists those that there are"},
    {"run serve", kLlama, "--grammar --grammar-file -j --json-schema -jf --json-schema-file",
     "answers cannot be bound to a grammar or schema"},
    {"serve", kVllm,
     "--structured-outputs-config --guided-decoding-backend --guided-decoding-disable-fallback "
     "--guided-decoding-disable-any-whitespace --guided-decoding-disable-additional-properties",
     "answers cannot be bound to a grammar or schema"},
    {"serve", kVllm, "--enable-auto-tool-choice --tool-parser-plugin --exclude-tools-when-tool-choice-none",
     "calls of tools are found in answers wherever a request has tools; --tool-call-parser names another format"},
    {"serve", kVllm, "--reasoning-parser --reasoning-parser-plugin --enable-reasoning --reasoning-config",
     "--reasoning-format auto separates what stands between <think> and </think>, and is the default"},
    {"serve", kLlama,
     "-rea --reasoning --reasoning-budget --reasoning-budget-message --reasoning-effort --reasoning-preserve "
     "--no-reasoning-preserve",
     "a request has reasoning_effort and chat_template_kwargs for it; --reasoning-format says where thoughts "
     "go"},
    {"serve", kLlama, "--chat-template-kwargs", "a request has chat_template_kwargs for it"},
    {"serve", kVllm, "--default-chat-template-kwargs", "a request has chat_template_kwargs for it"},
    {"run serve", kLlama, "--jinja --no-jinja", "chat templates are always rendered; leave it out"},
    {"serve", kLlama, "--skip-chat-parsing --prefill-assistant --no-prefill-assistant --spm-infill",
     "the chat template is rendered as it is; leave it out (--chat-template takes another one)"},
    {"serve", kVllm,
     "--chat-template-content-format --trust-request-chat-template "
     "--response-role",
     "contents reach the chat template as texts, and answers are the assistant's; leave it out "
     "(--chat-template takes "
     "another one)"},
    {"serve", kVllm, "--enable-prompt-tokens-details --enable-request-id-headers --enable-server-load-tracking",
     "answers always say it, and so do /metrics; leave it out"},
    {"serve", kVllm, "--enable-force-include-usage --return-tokens-as-token-ids",
     "a request asks for it (stream_options.include_usage, logprobs)"},
    {"serve", kLlama, "-sp --special", "control tokens are not part of an answer's text; a request may end at them"},
    {"serve", kLlama, "--rerank --reranking", "there is nothing like it here"},
};

// ---- HTTP, logs, the process ----

const ForeignOption kHttp[] = {
    {"serve", kVllm, "--api-key",
     "a command line is seen by everybody on the machine; put keys into a file for --api-key-file"},
    {"serve", kVllm, "--api-server-count -asc --renderer-num-workers --disable-frontend-multiprocessing",
     "the server is one process; --http-threads says how many threads serve HTTP"},
    {"serve", kVllm, "--h11-max-incomplete-event-size --h11-max-header-count",
     "--max-body-bytes, and max_header_bytes of --limits, bound a request"},
    {"serve", kVllm, "--ssl-ca-certs --ssl-cert-reqs --ssl-ciphers --enable-ssl-refresh",
     "clients show keys (--api-key-file), not certificates; a new certificate needs a restart"},
    {"serve", kVllm, "--root-path --middleware", "put a proxy in front of the server for it"},
    {"serve", kVllm, "--allow-credentials --allowed-methods --allowed-headers",
     "--allowed-origins says whose pages may use the server, with every method and header; keys are no "
     "cookies; leave it out"},
    {"serve", kLlama, "--api-prefix --reuse-port", "put a proxy in front of the server for it"},
    {"serve", kLlama, "--cors-methods --cors-headers --cors-credentials --no-cors-credentials",
     "--allowed-origins says whose pages may use the server, with every method and header; keys are no "
     "cookies; leave it out"},
    {"serve", kLlama,
     "--path --ui --webui --ui-config --webui-config --ui-config-file --webui-config-file --ui-mcp-proxy "
     "--webui-mcp-proxy --tools --tools-runtime --mcp-servers-config --mcp-servers-json -ag --agent -no-ag --no-agent "
     "--tags",
     "the server has a page of its own (--no-ui turns it off) and no tools; leave it out"},
    {"serve", kLlama, "--models-dir --models-preset --models-max --models-autoload --no-models-autoload",
     "a server has one model; start one for each"},
    {"serve", kLlama, "--metrics --props --slots --no-slots",
     "/metrics and /props are always there, and so is what they say; leave it out"},
    {"serve", kVllm, "--disable-fastapi-docs --enable-tokenizer-info-endpoint --enable-offline-docs",
     "there are no such pages; leave it out"},
    {"serve", kLlama, "-to --timeout",
     "--request-timeout bounds an answer; body_timeout and write_timeout of --limits what comes and what is "
     "read"},
    {"serve", kLlama, "--sse-ping-interval", "keep_alive_interval of --limits is the same"},
    {"serve", kVllm, "--shutdown-timeout", "--drain-timeout is the same"},
    {"serve", kVllm,
     "--disable-log-requests --enable-log-requests --enable-log-outputs --enable-log-deltas --max-log-len "
     "--disable-access-log-for-endpoints",
     "texts are never logged; --access-log and --no-access-log are about the line that each request has"},
    {"serve", kVllm,
     "--disable-log-stats --uvicorn-log-level --log-config-file --log-error-stack --aggregate-engine-logging "
     "--enable-logging-iteration-details --show-hidden-metrics-for-version --kv-cache-metrics "
     "--kv-cache-metrics-sample --cudagraph-metrics --enable-mfu-metrics",
     "figures are in /metrics; --log-level says what is logged, --trace-steps writes a line for every step"},
    {"serve", kVllm,
     "--otlp-traces-endpoint --collect-detailed-traces --profiler-config --enable-layerwise-nvtx-tracing",
     "--trace-steps writes a line for every step; quire profile says what a GPU's time goes to"},
    {kModelCommands, kLlama,
     "-v --verbose --log-verbose -lv --verbosity --log-verbosity --log-disable --log-file --log-jsonl "
     "--log-colors --log-prefix --log-timestamps",
     "--log-level says what is logged, on standard error"},
    {"serve", kVllm, "--timeout-keep-alive", "idle_timeout of --limits is the same"},
    {"serve", kVllm, "--config", "options stand on the command line"},
    {"run", kLlama, "-cnv --conversation",
     "without a prompt `quire run` at a terminal is a conversation; --chat for one question"},
    {"run", kLlama, "-no-cnv --no-conversation", "--raw continues a text without the chat template"},
    {"run", kLlama, "-sys --system-prompt", "write --system"},
    {"run", kLlama, "-i --interactive -if --interactive-first -mli --multiline-input",
     "without a prompt `quire run` at a terminal is a conversation"},
    {"run", kLlama, "-e --escape --no-escape", "a prompt is taken as it is; use $'...' of the shell for escapes"},
};

std::vector<ForeignOption> joined() {
  std::vector<ForeignOption> all;
  for (const std::span<const ForeignOption> part :
       {std::span<const ForeignOption>(kComputing), std::span<const ForeignOption>(kModelFile),
        std::span<const ForeignOption>(kScheduling), std::span<const ForeignOption>(kRequests),
        std::span<const ForeignOption>(kHttp)})
    all.insert(all.end(), part.begin(), part.end());
  return all;
}

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
  static const std::vector<ForeignOption> all = joined();
  return all;
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
