// Files of a card's costs: what `quire tune --out` writes and --card-costs reads.
#pragma once

#include <string>

#include "command/flags.h"
#include "ops/cuda/card_costs.h"
#include "ops/machine.h"

namespace quire::cli {

struct CostsFile {
  std::string card;           // its name, for people
  cuda::DeviceLimits limits;  // whose costs these are: compute capability and multiprocessors
  cuda::ProductCosts costs;
};

std::string costs_json(const CostsFile& file);
// Every key must be known, with its unit and a value in its range; what is not named is as it is built in. Errors name
// `path` and the key.
Result<CostsFile> parse_costs(std::string_view json, std::string_view path);

// --card-costs: which kernels a GPU's products take. No output depends on it.
struct CardCostsOption {
  std::string file;

  void add(Flags& flags);
  // Before the first engine: from here on kernels are chosen by the file, which must be of this card.
  Status apply(const Machine& machine) const;
  // The same; opens the GPU if there is a file.
  Status apply(Device device, int gpu) const;
};

}  // namespace quire::cli
