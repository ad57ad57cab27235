// What a server and the process that compiles its grammars say to each other (compile_host.h), over a socket of their
// own for each compilation: a request, and its reply. Both are the same program on the same machine, so numbers lie as
// they do in memory; lengths are checked all the same.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "constraint/grammar.h"

namespace quire {

// What runs longer is long: it makes room for others (CompilePool), on a processor as well.
constexpr std::chrono::milliseconds kShortCompilation{200};

struct CompileRequest {
  GrammarSpec spec;
  CompileLimits limits;
};

struct CompileReply {
  enum class Status : uint8_t {
    kGrammar,  // text: Grammar::to_bytes
    kRefused,  // text: what is wrong with the grammar, for the client
    kStack,    // it is nested deeper than the stack of the process allows
    kMemory,   // it takes more memory than the limits say
  };
  Status status = Status::kMemory;
  std::string text;
};

// A frame: the length of what follows, and that.
std::string to_frame(const CompileRequest& request);
std::string to_frame(const CompileReply& reply);

constexpr size_t kFrameHead = sizeof(uint64_t);
// Bytes that follow a frame's head.
uint64_t frame_length(std::string_view head);
// None: the bytes are no such thing.
std::optional<CompileRequest> read_request(std::string_view bytes);
std::optional<CompileReply> read_reply(std::string_view bytes);

// The vocabulary, which a process gets as a file when it starts.
std::string to_bytes(const Vocabulary& vocabulary);
std::optional<Vocabulary> read_vocabulary(std::string_view bytes);

}  // namespace quire
