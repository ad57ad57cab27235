// Server-sent events out of a stream of bytes (WHATWG HTML, section "server-sent events"): the data of each event.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace quire::server {

class EventReader {
 public:
  // The events that these bytes complete. Comments and fields other than data are skipped.
  std::vector<std::string> feed(std::string_view bytes);

 private:
  void line(std::string_view text, std::vector<std::string>& done);
  std::string held_, data_;
  bool any_data_ = false;
};

}  // namespace quire::server
