// What quantize did: a table by kind of tensor, or one JSON object.
#pragma once

#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "cli/quantize/encoder.h"
#include "cli/quantize/plan.h"

namespace quire::cli {

class QuantizeReport {
 public:
  void add(const Job& job, const EncodeStats* stats);  // null: copied as it was

  struct Whole {
    std::string input, output, type, mix, search;
    std::string importance;  // the file; empty: none
    uint64_t bytes_before = 0, bytes_after = 0;
    int64_t buffer_bytes = 0;
    double seconds = 0;
  };
  void print(const Whole& whole) const;
  void print_json(const Whole& whole) const;

 private:
  struct Sum {
    int64_t tensors = 0, elems = 0, before = 0, after = 0;
    EncodeStats stats;
  };
  struct Fallback {
    std::string tensor;
    DType wanted, type;
    int64_t columns;
  };
  // What a tensor is, its type before, and after.
  using Class = std::tuple<std::string, DType, DType>;

  void print_notes(const Whole& whole) const;

  std::map<Class, Sum> sums_;
  Sum all_;
  std::vector<Fallback> fallbacks_;
  std::vector<std::string> unweighted_, requantised_;
  std::vector<std::pair<std::string, int64_t>> unreached_;  // tensor, experts
  int64_t weighted_ = 0;
};

}  // namespace quire::cli
