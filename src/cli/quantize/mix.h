// Which type each tensor of a model gets: a mix chosen by --type and the kind of model, and what --head-type and
// --tensor say.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/pattern.h"
#include "command/encoding.h"
#include "gguf/reader.h"

namespace quire::cli {

// The new type of each role of tensors; nothing: as in the input.
struct Mix {
  std::optional<DType> ffn, projection, head;
  std::optional<DType> value;  // attn_v of plain transformers, where it differs from the other projections
  std::optional<DType> mtp;    // all matrices of the blocks for multi-token prediction, whatever they are for
  int64_t first_mtp = -1;      // the first such block; -1: there is none

  bool is_mtp(const gguf::TensorInfo& t) const;
  std::optional<DType> of(const gguf::TensorInfo& t) const;
  // "feed-forward and experts nvfp4; projections as they were; embedding and head q8_0; ..."
  std::string text() const;
};

// Hybrids (with delta-net layers) keep their projections at 16 bits when the rest has 4: four bits there cost
// about 6% of perplexity, for a few percent of the bytes of a mixture of experts.
// A block for multi-token prediction has 8 bits at least: what it drafts wrong costs more time than its bytes save.
Mix default_mix(DType type, const gguf::File& f);
// The table of mixes, for --help.
std::string mixes_help();

// Of --tensor REGEX=TYPE. TYPE may be "keep".
struct Override {
  Pattern pattern;
  std::optional<DType> type;  // nothing: as in the input
  std::string text;           // as given
};
Result<std::vector<Override>> parse_overrides(const std::vector<std::string>& given);

// What was decided for one tensor.
struct Choice {
  DType type = DType::kF32;
  std::optional<DType> wanted;  // set if rows of this length cannot be `wanted`, and `type` stands in for it
  bool mtp = false;             // of a block for multi-token prediction
};

// An error if an override asks for what cannot be, matches nothing, or takes too long to match.
Result<std::vector<Choice>> choose_types(const gguf::File& f, const Mix& mix, const std::vector<Override>& overrides);

}  // namespace quire::cli
