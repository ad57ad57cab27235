// Compiles grammars in processes (compile_host.h): several at a time, of clients that take turns.
//
// Grammars that people send take milliseconds. Each begins in one of a few places; what runs longer than
// kShortCompilation moves to one of two places for what takes long, or begins anew there later: so a small grammar
// waits for others' large ones no longer than that.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "constraint/compile_frames.h"
#include "constraint/compile_queue.h"

namespace quire {

struct CompilePoolOptions {
  std::string program;       // whose kCompileHostCommand runs the process: "/proc/self/exe"
  int places = 2;            // compilations at a time, of which none takes long
  CompileLimits limits;      // of one
  size_t max_waiting = 256;  // of all clients; a single one: a quarter of them
};

// Any thread. What is done here runs on a thread of its own, which starts with the first compilation.
class CompilePool {
 public:
  static constexpr int kLongPlaces = 2;
  // Of a compiled grammar: more is refused as too large.
  static constexpr size_t kMostBytes = size_t{32} << 20;

  // Is told the bytes of a grammar (Grammar::to_bytes), or why there is none, and how long it took. Errors:
  // Fault::kRequest, the grammar is refused, and would be again; Fault::kCapacity, there was no room, or it was ended.
  using Done = std::function<void(Result<std::string> bytes, double seconds)>;

  CompilePool(std::shared_ptr<const Vocabulary> vocabulary, CompilePoolOptions options);
  ~CompilePool();  // stop()
  CompilePool(const CompilePool&) = delete;

  // `done` is called once on the pool's thread, unless the compilation is cancelled before. Errors: Fault::kCapacity,
  // too many wait.
  Result<uint64_t> submit(const GrammarSpec& spec, const std::string& client, Done done);
  // Ends it if it runs. `done` is not called any more, but may be running.
  void cancel(uint64_t id);
  // Ends all; their `done` is told so.
  void stop();

 private:
  using Clock = std::chrono::steady_clock;
  struct Job {
    std::string client;
    GrammarKind kind = GrammarKind::kJsonObject;
    size_t size = 0;    // of its text
    std::string frame;  // the request
    Done done;
    // Of one that runs:
    int fd = -1;
    size_t sent = 0;
    std::string reply;
    Clock::time_point began;
    bool is_long = false;
  };
  struct Host {
    int fd = -1;  // its control socket
    int pid = 0;
    bool ready = false;
    Clock::time_point started;
  };
  struct Finished {
    Done done;
    Result<std::string> bytes;
    double seconds;
  };

  void work();
  void start_jobs();
  void start(uint64_t id, Job& job, bool is_long);
  Status start_host();
  void end_host();
  void hear_host();
  void look_at(uint64_t id, Job& job);
  void exchange(uint64_t id, Job& job);
  void look_at_clocks();
  std::chrono::milliseconds next_deadline() const;
  Result<std::string> result_of(const Job& job) const;
  void finish(uint64_t id, Result<std::string> bytes);
  void release(Job& job);
  void wake();

  const std::shared_ptr<const Vocabulary> vocabulary_;
  const CompilePoolOptions options_;
  std::mutex mutex_;
  bool stop_ = false;
  int wake_ = -1;  // an eventfd
  std::map<uint64_t, Job> jobs_;
  CompileQueue short_, long_;
  int short_running_ = 0, long_running_ = 0;
  uint64_t last_id_ = 0;
  Host host_;
  std::vector<Finished> finished_;
  std::thread thread_;
};

}  // namespace quire
