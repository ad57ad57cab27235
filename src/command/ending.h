// How the program ends when its work does not: at a signal, out of memory, by a mistake of ours. In each case one line
// on standard error and no unfinished file.
#pragma once

#include "core/result.h"

namespace quire::cli {

inline constexpr int kExitFailed = 1;    // what was checked does not hold: `quire snapshot`
inline constexpr int kExitRequest = 2;   // the request or a file
inline constexpr int kExitCapacity = 3;  // memory or threads ran out
inline constexpr int kExitBug = 70;      // a mistake of ours
inline constexpr int kExitSignal = 128;  // and the signal's number: how shells show what a signal ended

// To be called once, before anything else. From here on
// - SIGINT, SIGTERM and SIGHUP end the program at once, as they would by themselves, but after removing unfinished
// files
//   and saying which. What was ignored (`nohup`) stays ignored; a SignalNotes takes them over while it lives.
// - an exception that no thread catches (std::bad_alloc, a thread that does not start) ends it with its line and code.
// - a file that may not grow is an error of write(), like a full disk; a mapped file that cannot be read any more is
//   one line.
// - standard streams that are closed are there, and fail: no file takes their place.
void set_up_ending();

// What the program's exit code is when the command has done its work: 0, unless the command has said something else.
void conclude(int code);
int conclusion();

// The error's line, and its exit code.
int report(const Error& e);
// The same for the exception that is being handled.
int report_exception() noexcept;

// Ends the process as the signal does when nobody handles it, so that a calling shell sees it.
[[noreturn]] void end_by_signal(int signal);

}  // namespace quire::cli
