// The speeds of a snapshot: figures that are read in rounds, each reading beside fixed loops that say how fast the
// machine was just then.
#pragma once

#include <memory>
#include <span>

#include "lab/batch_workload.h"
#include "lab/snapshot/operators.h"
#include "lab/snapshot/record.h"

namespace quire::cli::snapshot {

// Loops that no change of the program changes: products in registers, and reading 32 MiB. About 30 milliseconds.
class FixedLoops {
 public:
  explicit FixedLoops(int threads);
  // The best of three of each, as Reading::compute and memory.
  Reading run();

 private:
  ThreadPool pool_;
  std::vector<uint64_t> data_;
};

struct SpeedOptions {
  EngineOptions engine;  // device, threads, kernels, cache, arithmetic: what is left open is chosen by each test
  bool quick = false;    // smaller shapes, fewer of them
  bool operators = true;
};

class SpeedTests {
 public:
  // What one pass measures together.
  struct Task {
    std::string name;
    std::vector<Figure> figures;  // without readings
    double seconds = 0;           // of a pass, when it was warm
    int passes = 1;               // of a reading, which is the best of them: whatever disturbs only slows
  };

  // Makes the engines, and runs every test twice to warm up.
  static Result<std::unique_ptr<SpeedTests>> create(std::shared_ptr<const LoadedModel> model, SpeedOptions options);

  std::span<const Task> tasks() const { return tasks_; }
  // One reading of each of the task's figures.
  Result<std::vector<Reading>> read(size_t task);
  // Of one round.
  double seconds() const;

  // On a CPU, of the passes so far: the shortest time of each operator.
  const std::vector<Bucket>& buckets() const { return buckets_; }
  const std::string& fingerprint() const { return fingerprint_; }
  const std::string& capacity() const { return capacity_; }

 private:
  struct Batch {
    std::shared_ptr<Engine> engine;
    BatchShape shape;
    bool one = false;  // a sequence alone
  };

  SpeedTests(std::shared_ptr<const LoadedModel> model, SpeedOptions options);
  Status make_batches();
  Status make_operators();
  Status warm_up();
  Result<std::vector<double>> pass(size_t task);
  Result<std::vector<double>> pass_operators();
  void keep_best(const std::vector<Bucket>& buckets);

  std::shared_ptr<const LoadedModel> model_;
  SpeedOptions options_;
  std::unique_ptr<FixedLoops> loops_;  // null: on a GPU
  std::vector<Batch> batches_;         // of the first tasks
  std::unique_ptr<OperatorProfile> operators_;
  std::vector<Task> tasks_;
  std::vector<Bucket> buckets_;
  std::string fingerprint_, capacity_;
  uint64_t seed_ = 1;
};

}  // namespace quire::cli::snapshot
