#include "server/protocol/event_reader.h"

#include <utility>

namespace quire::server {

void EventReader::line(std::string_view text, std::vector<std::string>& done) {
  if (text.ends_with('\r')) text.remove_suffix(1);
  if (text.empty()) {
    if (std::exchange(any_data_, false)) done.push_back(std::exchange(data_, {}));
    return;
  }
  if (!text.starts_with("data:")) return;
  text.remove_prefix(5);
  if (text.starts_with(' ')) text.remove_prefix(1);
  if (any_data_) data_ += '\n';
  data_ += text;
  any_data_ = true;
}

std::vector<std::string> EventReader::feed(std::string_view bytes) {
  std::vector<std::string> done;
  held_ += bytes;
  size_t from = 0;
  for (size_t end; (end = held_.find('\n', from)) != std::string::npos; from = end + 1)
    line(std::string_view(held_).substr(from, end - from), done);
  held_.erase(0, from);
  return done;
}

}  // namespace quire::server
