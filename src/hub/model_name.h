// The name of a model on a hub, and of a file within it. Names come from command lines and from hubs, and become paths
// of files: what could lead out of a folder is refused here.
#pragma once

#include <string>
#include <string_view>
#include <vector>

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

// Whether a word has the form ORG/NAME[:QUANT|FILE] and can hardly be meant as the path of a file.
bool looks_like_hub_name(std::string_view text);

// Which of `ids` ("ORG/NAME") are called by a short name, as "qwen3-4b" or "qwen3:4b" may stand for Qwen/Qwen3-4B-GGUF:
// those whose NAME it is, without regard to capitals; or else, whose NAME it is without "-GGUF" at the end; or else,
// whose NAME begins with it up to a dash.
std::vector<std::string> ids_called(std::string_view word, const std::vector<std::string>& ids);

// An error where `path` is no relative path of plain names: empty parts, "." and "..", a leading slash, backslashes,
// control characters, invalid UTF-8, or parts longer than a file's name may be.
Status check_path(std::string_view path);

// 40 or 64 lower-case hexadecimal digits: a commit, and what blobs are called.
bool is_hex(std::string_view text, size_t digits);

}  // namespace quire::hub
