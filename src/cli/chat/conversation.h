// A conversation: what was said, as a chat template wants it and as a file.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "core/result.h"
#include "server/protocol/picture.h"

namespace quire::cli {

struct Turn {
  bool user = true;
  std::string content;
  std::string thinking;                           // of an answer, apart from it
  std::vector<server::PicturePtr> pictures = {};  // in front of a message
};

struct Conversation {
  std::string system;  // empty: none
  std::vector<Turn> turns;

  // {"role", "content"}, of answers that were thought about "reasoning_content" too: the names that templates
  // know. With pictures a content is parts (content_of).
  nlohmann::ordered_json messages() const;
  // The first question and its answer. False if there is nothing before the last question.
  bool drop_oldest();

  // One JSON object with "messages", readable by its owner alone. A file that exists and is no conversation
  // is left as it is, with an error. `model`: its name, for the reader.
  Status save(const std::string& path, const std::string& model) const;
  // Errors begin with the path.
  static Result<Conversation> load(const std::string& path);
};

}  // namespace quire::cli
