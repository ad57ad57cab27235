// The process in which a server compiles the grammars that clients send. Compilers recurse over their input and take
// memory with it: whatever a client's grammar does to its compiler, it does to this process and not to the server.
//
// The process is the program itself, called as `quire compile-grammars`. It reads the vocabulary once and then forks a
// process for each compilation, with limits of memory, of CPU seconds and of the stack. That one ends when it has
// replied, or as soon as the server closes its socket: so a client that leaves, a time that is up and a server that
// ends all end it.
#pragma once

#include <string_view>

namespace quire {

// The argument by which a program knows that it was started as this process. Its standard input is the socket over
// which it hears of compilations (each message of a byte carries the socket of one), and kVocabularyFd a file with the
// vocabulary (compile_frames.h). When it can take compilations it writes a byte.
inline constexpr std::string_view kCompileHostCommand = "compile-grammars";
inline constexpr int kVocabularyFd = 3;

// Runs the process until its standard input ends; returns its exit code. Nothing else may run in it: no thread.
int run_compile_host();

}  // namespace quire
