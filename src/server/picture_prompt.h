// Pictures in the prompt of a conversation: what a chat template writes for each, and the tokens that this becomes.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/loaded_vision.h"
#include "image/decode.h"
#include "server/cache_marks.h"

namespace quire::server {

// A picture whose tokens stand in a prompt. It was not decoded: its size is in its header.
struct PlacedPicture {
  PicturePtr file;
  image::ImagePlan plan;
  int64_t position = 0;  // of the first of plan.tokens tokens
  image::Crop crop;      // the part of it that these show
};

// How a chat template takes pictures, found out by rendering short conversations. A role's content becomes a list of
// parts with {"type": "image"} where the template writes such a part with the marker that stands for pictures
// (LoadedVision). Elsewhere contents stay texts, and what the template writes for a picture of a user's, or else the
// marker between the tokens that such models have around it, is put into the rendered text: as the template's own, in
// which control tokens are read. Then markers of the template's own become what models read.
class PictureTemplate {
 public:
  PictureTemplate() = default;
  PictureTemplate(const RenderMessages& render, const Tokenizer& tokenizer, const LoadedVision& vision);

  // Of a conversation whose contents have the words of `pictures`, which were `planned`.
  Result<RenderedPrompt> render(const Json& messages, const Pictures& pictures, std::span<const PlacedPicture> planned,
                                const RenderMessages& render) const;

  const std::string& pad() const { return pad_; }

 private:
  bool takes_parts(const Json& message) const;

  std::string pad_;                                 // the token's text
  std::string marker_, written_;                    // of LoadedVision
  std::string usual_;                               // what is written for a picture where contents are texts
  std::map<std::string, bool, std::less<>> parts_;  // by role
};

// The pictures whose words contents have, in their order; of each the whole, and behind it the pieces that the model
// sees besides.
ApiResult<std::vector<PlacedPicture>> plan_pictures(const Json& messages, const Pictures& pictures,
                                                    const image::ImageSpec& spec, const image::ImageLimits& limits);

// Repeats the token of each picture as often as its plan says, and notes where. `positions`, which are numbers of
// tokens before a place in the prompt, move with what stands there. Errors: the tokens are not those of the pictures.
ApiStatus expand_pictures(std::vector<TokenId>& tokens, TokenId pad, std::string_view pad_text,
                          std::vector<PlacedPicture>& pictures, std::vector<int64_t>& positions);

}  // namespace quire::server
