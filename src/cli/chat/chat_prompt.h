// A chat's messages as a prompt for a model in this process.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/loaded_model.h"
#include "engine/prompt_image.h"
#include "server/picture_store.h"

namespace quire::cli {

struct ChatPrompt {
  std::vector<TokenId> tokens;
  std::vector<server::PlacedPicture> pictures;  // not decoded
};

// Messages through the model's chat template to tokens. Contents may be parts, with pictures as data: URLs. Errors:
// pictures for a model that takes none.
Result<ChatPrompt> encode_chat(const LoadedModel& model, const nlohmann::ordered_json& messages, bool think);

// A picture's file from the disk.
Result<server::PicturePtr> read_picture(const std::string& path);
Result<std::vector<server::PicturePtr>> read_pictures(const std::vector<std::string>& paths);
// Pictures and behind them a text as a message's content: the text alone where there are none.
nlohmann::ordered_json content_of(const std::vector<server::PicturePtr>& pictures, const std::string& text);

// Decodes pictures for one model.
class PictureDecoder {
 public:
  explicit PictureDecoder(const LoadedModel& model);
  // Null where there are none.
  Result<std::shared_ptr<const PromptImages>> decode(const std::vector<server::PlacedPicture>& pictures);

 private:
  std::unique_ptr<server::PictureStore> store_;  // null: the model takes none
};

}  // namespace quire::cli
