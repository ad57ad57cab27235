#include "server/infill_prompt.h"

#include <algorithm>
#include <iterator>

#include "tokenizer/infill_tokens.h"

namespace quire::server {
namespace {

using Tokens = std::vector<TokenId>;

void append(Tokens& to, const Tokens& more) {
  std::copy(more.begin(), more.end(), std::back_inserter(to));
}

// Other files of the project, in the form that models with tokens for them are trained on; without such tokens as texts
// under their names.
ApiResult<Tokens> encode_files(const ModelContext& model, const InfillTokens& marks,
                               const std::vector<Infill::File>& files) {
  Tokens all;
  if (files.empty()) return all;
  if (marks.repository) {
    all.push_back(*marks.repository);
    QUIRE_TRY(const Tokens name, model.encode_plain("project\n"));
    append(all, name);
  }
  for (const Infill::File& file : files) {
    if (marks.separator) all.push_back(*marks.separator);
    QUIRE_TRY(const Tokens text, model.encode_plain(file.name + "\n" + file.text + "\n"));
    append(all, text);
  }
  if (marks.separator) all.push_back(*marks.separator);
  return all;
}

// What each part may have of `room` tokens.
void trim(Tokens& files, Tokens& prefix, Tokens& suffix, size_t room) {
  const size_t behind = std::min(suffix.size(), std::max(room / 4, room - std::min(room, prefix.size())));
  suffix.resize(behind);
  const size_t before = std::min(prefix.size(), room - behind), others = std::min(files.size(), room - behind - before);
  prefix.erase(prefix.begin(), prefix.end() - static_cast<std::ptrdiff_t>(before));
  files.erase(files.begin(), files.end() - static_cast<std::ptrdiff_t>(others));
}

}  // namespace

ApiResult<EncodedPrompt> encode_infill(const ModelContext& model, Prompt prefix, const Infill& infill,
                                       const GenerationParams& params) {
  if (!model.infill_tokens()) return no_infill("suffix");
  const InfillTokens& marks = *model.infill_tokens();
  Tokens before;
  if (auto* const tokens = std::get_if<Tokens>(&prefix)) {
    before = std::move(*tokens);
  } else {
    QUIRE_TRY(before, model.encode_plain(std::get<std::string>(prefix)));
  }
  QUIRE_TRY(Tokens behind, model.encode_plain(infill.suffix));
  QUIRE_TRY(const Tokens begun, model.encode_plain(infill.begun));
  QUIRE_TRY(Tokens files, encode_files(model, marks, infill.files));
  const Tokenizer& t = model.tokenizer();
  const bool bos = t.add_bos() && t.bos() && (before.empty() || before.front() != *t.bos());
  if (infill.trim) {
    const int64_t context = model.context();
    const int64_t answer = params.max_tokens ? std::min(*params.max_tokens, context / 2) : context / 4;
    const int64_t fixed = (bos ? 1 : 0) + 3 + static_cast<int64_t>(begun.size());
    trim(files, before, behind, static_cast<size_t>(std::max<int64_t>(context - answer - fixed, 0)));
  }
  EncodedPrompt p;
  if (bos) p.tokens.push_back(*t.bos());
  append(p.tokens, files);
  p.tokens.push_back(marks.prefix);
  append(p.tokens, before);
  p.tokens.push_back(marks.suffix);
  append(p.tokens, behind);
  p.tokens.push_back(marks.middle);
  append(p.tokens, begun);
  return p;
}

}  // namespace quire::server
