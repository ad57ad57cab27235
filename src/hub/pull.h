// A model of a hub as files in the cache, ready to be opened.
#pragma once

#include <string>

#include "hub/cache.h"
#include "hub/choose.h"
#include "hub/http.h"
#include "hub/repository.h"

namespace quire::hub {

struct HubOptions {
  std::string cache;  // its folder
  HttpOptions http;
  bool offline = false;  // nobody is asked: what is in the cache is all there is
  int connections = 8;   // for one file, at most
  bool mmproj = true;    // the vision tower beside a GGUF file comes with it
  Place place;           // where the model is to run
};

struct Pulled {
  std::string path;    // the file to open, of a split one the first; or a folder
  std::string mmproj;  // of the vision tower that came with it; empty: none
  std::string commit, kind, why;
  uint64_t bytes = 0, fetched = 0;
};

// Chooses, fetches what is not there, and links it, one file after the other; what fails leaves what is complete, and
// what is not where it is found again. Says on standard error what is fetched and how far it is: a bar on a terminal,
// else a line every ten seconds. Several processes may do this at once.
Result<Pulled> pull(const ModelName& name, const HubOptions& options);

// The files of a listing, as choose() wants them.
std::vector<NamedFile> named_files(const Repository& repository);

}  // namespace quire::hub
