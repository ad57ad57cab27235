#include "cli/commands.h"

namespace quire::cli {
namespace {

constexpr bool kTakesHubModels = true;

// `inspect` asks a hub by itself, without fetching.
constexpr Command kCommands[] = {
    {"run", "Generate text from a prompt, or chat", add_run, kTakesHubModels},
    {"chat", "Talk with the model of a server", add_chat},
    {"serve", "Answer many users over HTTP: the APIs of OpenAI (chat and Responses), Anthropic and Ollama, and a page",
     add_serve, kTakesHubModels},
    {"health", "Say whether a server is ready to answer", add_health},
    {"pull", "Fetch a model from a hub into the cache that other tools share", add_pull},
    {"list", "List the models that were fetched from a hub", add_list},
    {"rm", "Remove a model that was fetched from a hub", add_rm},
    {"inspect", "Print what a model file holds, here or on a hub, and whether it would run", add_inspect},
    {"convert", "Turn a Hugging Face model folder into a GGUF file", add_convert},
    {"quantize", "Re-encode the matrices of a model in another type", add_quantize, kTakesHubModels},
    {"imatrix", "Measure which inputs of each matrix matter, for quantize", add_imatrix, kTakesHubModels},
    {"tokenize", "Print the tokens of a text, or the text of tokens", add_tokenize, kTakesHubModels},
    {"devices", "List the GPUs that can be used, with their memory and its measured speed", add_devices},
    {"options", "Print the options of a command as a table", [](Flags& flags) { return add_options(flags, kQuire); }},
    {"completions", "Print what a shell needs to complete command lines",
     [](Flags& flags) { return add_completions(flags, kQuire); }},
    {"version", "Print the version and what this CPU offers", add_version},
};

constexpr Neighbour kNeighbours[] = {
    {"quire-lab", kLabDoors, "`ninja quire-lab` builds it; copy it there"},
    {"quire-localai", kLocalAiDoors,
     "copy it there; it is built where gRPC is: libgrpc++-dev, libprotobuf-dev, protobuf-compiler and "
     "protobuf-compiler-grpc (scripts/setup.sh installs them)"},
};

}  // namespace

constinit const Program kQuire{"quire",
                               "Quire serves large language models from one GGUF file: fast, and the same text every "
                               "time.\nCommands that measure are quire-lab's, and are typed as quire's.",
                               kCommands, kNeighbours};

}  // namespace quire::cli
