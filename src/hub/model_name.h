// The name of a model on a hub, and of a file within it. Names come from command lines and from hubs, and become paths
// of files: what could lead out of a folder is refused here.
#pragma once

#include <string>
#include <string_view>

#include "core/result.h"

namespace quire::hub {

struct ModelName {
  std::string id;                 // "ORG/NAME"; a few old ones are without ORG
  std::string choice;             // what follows a colon: a kind ("Q4_K_M") or a file's path; empty: left to us
  std::string revision = "main";  // a branch, a tag or a commit

  // Of "ORG/NAME[:QUANT|FILE]", also with "hf:" before it.
  static Result<ModelName> parse(std::string_view text, std::string_view revision = "main");
  // Whether the choice is a file's path rather than a kind.
  bool names_file() const;
  std::string text() const { return choice.empty() ? id : id + ":" + choice; }
  // "models--ORG--NAME", as all tools that share the cache call its folder.
  std::string folder() const;
};

// Whether a command line's word names a model on a hub: it begins with "hf:".
bool is_hub_name(std::string_view text);

// An error where `path` is no relative path of plain names: empty parts, "." and "..", a leading slash, backslashes,
// control characters, invalid UTF-8, or parts longer than a file's name may be.
Status check_path(std::string_view path);

// 40 or 64 lower-case hexadecimal digits: a commit, and what blobs are called.
bool is_hex(std::string_view text, size_t digits);

}  // namespace quire::hub
