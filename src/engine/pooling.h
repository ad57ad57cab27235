// From the hidden states of a prompt's tokens to its embedding. Internal to the engine.
#pragma once

#include <span>
#include <vector>

namespace quire {

class PooledRows {
 public:
  // One more row. Rows come in the order of their positions and are added one by one in float64, so that no bit depends
  // on how many of them a step computed.
  void add(std::span<const float> row);
  // The rows' mean, scaled to length 1 (which is what their sum becomes as well). Empty if that is impossible: it is
  // zero or holds what is no number.
  std::vector<float> normalised() const;

 private:
  std::vector<double> sum_;  // takes memory with the first row: requests that wait have none
};

}  // namespace quire
