// Tensors of a model folder that nothing is made from: those that may stay unread, each with its reason, and the
// refusal of all others. What a model folder has and a model does not compute makes other answers.
#pragma once

#include <string>
#include <vector>

#include "convert/hf_config.h"
#include "convert/matrix.h"

namespace quire::convert {

// Asked when everything that the plan needs has been taken from `source`. Gives a line for each kind of tensor that is
// left out and of which one may want to know; an error names a tensor that is none of them.
Result<std::vector<std::string>> check_leftovers(Source& source, const HfConfig& config);

}  // namespace quire::convert
