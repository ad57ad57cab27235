// Adding up the squares of what each weight matrix of a model is multiplied by, for an importance file.
#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "gguf/reader.h"
#include "ops/observer.h"
#include "quant/importance.h"

namespace quire {

// Sums are in float64 and each column's is over the tokens in the order of the calls, so they depend neither
// on the number of threads nor on how a text is cut into steps. Matrices are recognised by where their tensor
// begins: of several parts of one fused tensor, which all see the same rows, the first one counts.
class ImportanceCollector final : public InputObserver {
 public:
  // The file whose weights the model uses, which must stay open.
  explicit ImportanceCollector(const gguf::File& file);

  void inputs(const OpContext& ctx, std::span<const Weight* const> weights, int64_t expert, const Tensor& x) override;

  // What has been seen, under the names of the file's tensors.
  Status add_to(quant::ImportanceTotals& totals) const;

 private:
  // Matrices that are always multiplied by the same rows (queries, keys and values) share their sums.
  struct Site {
    std::vector<std::string_view> tensors;
    int64_t columns = 0;
    std::vector<double> sum2;    // [experts, columns]
    std::vector<double> counts;  // [experts]
  };
  Site& site_of(std::span<const Weight* const> weights);

  std::unordered_map<const std::byte*, std::string_view> names_;
  std::unordered_map<const std::byte*, Site> sites_;  // by the first of the weights
};

}  // namespace quire
